"""What is compared of a recording, and no more: its events without addresses, its segments at the end, its peaks.

    python -m benchmarks.real_cards.facts SNAPSHOT

prints it as JSON: facts about a file of somebody else's, small enough to be kept and free of its stacks and names.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.real_cards.compare import events_of, forms_of, peaks_of
from ullage.recorded.history import Action, History
from ullage.recorded.snapshot.snapshot import load_snapshot


def history_of(path: Path) -> History:
    """Return the history of the card that has most of one."""
    return max(load_snapshot(path).devices.values(), key=lambda history: (len(history), len(history.segments)))


def facts_of(history: History) -> dict[str, Any]:
    """Return what is compared, as JSON has it; events as "name size number", segments as a list of blocks."""
    peaks = peaks_of(history)
    segments = [[list(form[:4]), [list(block) for block in form[4]]] for form in forms_of(history).elements()]
    return {
        "events": [f"{Action(action).name.lower()} {size} {number}" for action, size, number in events_of(history)],
        "segments": sorted(segments),
        "requested_peak_bytes": peaks.requested_bytes,
        "allocated_peak_bytes": peaks.allocated_bytes,
        "reserved_peak_bytes": peaks.reserved_bytes,
    }


def main() -> None:
    """Print the facts of a snapshot."""
    facts = facts_of(history_of(Path(sys.argv[1])))
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
