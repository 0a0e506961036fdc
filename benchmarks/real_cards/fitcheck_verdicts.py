"""Runs at the edge of a Tesla T4's memory: which completed there, which ran out, and whether the emulated card agrees.

fitcheck-llm publishes the outcome of each in `file`, and in the archive that the file names what was measured of it:
the figures of a run that completed, the text of PyTorch's error of one that ran out. A case names the `row_id`; how a
run is started is `fitcheck`'s. Runs in several orders (`orders`) that do not agree are a verdict that cannot be judged.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.real_cards.bench import Bench, Ended, RunError
from benchmarks.real_cards.case import CANNOT_BE_JUDGED, FITS, OUT_OF_MEMORY, Case, Figure, Result, Verdict
from benchmarks.real_cards.fitcheck import compared, ended_of, first_of, printed, reason_of, shape_of
from ullage.recorded.message.message import WINDOW, Message, read_message

_OUTCOMES: Final = {"completed": FITS, "oom": OUT_OF_MEMORY}
_ATTENTION: Final = {"flash": "sdpa", "eager": "eager"}
"""As the source says of its T4: its "flash" is PyTorch's memory-efficient attention."""
_MESSAGE: Final = {
    "asked for": "requested_bytes",
    "allocated then": "allocated_bytes",
    "cached then": "unallocated_bytes",
}
_UNITS: Final = (1 << 30, 1 << 20, 1 << 10)


def run(case: Case, bench: Bench) -> Result:
    """Run the script as the row says; compare whether it ends, and what it printed or how it failed."""
    path = bench.published(case)
    told = json.loads(path.read_text())
    name = case.parameters["row_id"]
    outcome = next(entry for entry in told["results"] if entry["row_id"] == name)
    row = archived(path.parent.parent / told["provenance"]["source_archive"], name)
    identity = outcome["identity"]
    shape = row.get("model_config") or shape_of(identity["model_id"], path.parent.parent)
    ended = ended_of(case, bench, asked_of(identity), shape)
    verdict = Verdict(published=_OUTCOMES[outcome["outcome"]], emulated=verdict_of(ended))
    figures: dict[str, Figure] = {}
    intervals: dict[str, tuple[int, int]] = {}
    if verdict.is_right and verdict.published == FITS:
        figures, intervals = compared(row["measured"], [printed(one) for one in ended], 1)
    elif verdict.is_right:
        figures, intervals = failures_compared("\n".join(row["stderr_tail"]), ended)
    return Result.judged(
        case=case.name, verdict=verdict, figures=figures, intervals=intervals, reason=reason_of(intervals, len(ended))
    )


def archived(archive: Path, row: str) -> dict[str, Any]:
    """Return what the archive of the measurements holds of a row.

    Raises:
        RunError: it holds nothing of it.
    """
    with zipfile.ZipFile(archive) as opened:
        name = next((name for name in opened.namelist() if Path(name).name == f"{row}.json"), None)
        if name is None:
            raise RunError(f"{archive.name} has no row {row}")
        found: dict[str, Any] = json.loads(opened.read(name))
    return found


def asked_of(identity: dict[str, Any]) -> dict[str, Any]:
    """Return what a row's identity asks of the script, as a measured row says it."""
    fixed = {"gpu_key": "t4", "double_quant": False, "quantization": identity["quantization"]}
    return {**identity, **fixed, "attn_impl": _ATTENTION[identity["kernel"]]}


def verdict_of(ended: Sequence[Ended]) -> str:
    """Return what several runs say together.

    Raises:
        RunError: one ended badly for another reason.
    """
    found = {FITS if not one.returncode else _failure(one) for one in ended}
    return found.pop() if len(found) == 1 else CANNOT_BE_JUDGED


def _failure(ended: Ended) -> str:
    message = said_last(ended.error)
    if message is None or not message.is_certain:
        ended.checked()
    return OUT_OF_MEMORY


def said_last(error: str) -> Message | None:
    """Read the message that a script ended with: warnings and bars of progress may stand before it at any length."""
    return read_message(error[-WINDOW:])


def failures_compared(published: str, ended: Sequence[Ended]) -> tuple[dict[str, Figure], dict[str, tuple[int, int]]]:
    """Return what PyTorch's error said on the real card beside the first of what it said here, to its last digit."""
    real, here = read_message(published), [said_last(one.error) for one in ended]
    figures: dict[str, Figure] = {}
    intervals: dict[str, tuple[int, int]] = {}
    for name, part in _MESSAGE.items():
        size = _part(real, part)
        figures[name], between = first_of(size, [_part(message, part) for message in here], resolution_of(size))
        if between:
            intervals[name] = between
    return figures, intervals


def _part(message: Message | None, name: str) -> int:
    size = message and getattr(message, name)
    if size is None:
        raise RunError(f"the error does not say how much was {name.removesuffix('_bytes')}")
    return int(size)


def resolution_of(size_bytes: int) -> int:
    """Return what the last digit stands for, as PyTorch writes a size: two digits after the point of its unit."""
    unit = next((unit for unit in _UNITS if size_bytes >= unit), 1)
    return max(unit // 100, 1)
