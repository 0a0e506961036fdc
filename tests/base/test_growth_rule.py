"""One rule for memory that grows: `predict`, `explain` and `Monitor` say the same of the same script (docs/growth.md).

Each script takes 120 steps, and all three see all of them.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.commands import SCRIPTS, Predict, environment_of
from ullage.explaining.analysis.explain import explain
from ullage.recorded.snapshot.snapshot import load_snapshot

SCRIPT = SCRIPTS / "grows_how.py"
EXPECTED = {
    "every step": True,
    "every sixth step": True,
    "begun late": True,
    "in evaluations": True,
    "among varying lengths": True,
    "a cache that is full": False,
    "a cache that fills ever more slowly": False,
    "warm-up": False,
    "varying lengths": False,
    "cleared again and again": False,
}
"""Whether memory grows, for each way to keep something; written down before any of them was run."""


@pytest.mark.by_day(2)
@pytest.mark.parametrize("how", EXPECTED)
def test_all_three_say_the_same_and_are_right(how: str, predict: Predict, workplace: Path) -> None:
    """And where memory grows, they name the line that keeps it."""
    predicted = predict(SCRIPT, how, "--json", "--steps", "120")
    assert predicted.code == 0, predicted.error
    snapshot = workplace / "snapshot.pickle"
    emulated = f"import ullage, runpy, sys; ullage.emulate('T4'); sys.argv[:] = {[str(SCRIPT), how, str(snapshot)]!r}; "
    watched = client.run(
        [sys.executable, "-c", emulated + "runpy.run_path(sys.argv[0], run_name='__main__')"],
        cwd=workplace,
        env=environment_of(workplace),
    )
    assert watched.returncode == 0, watched.stderr[-3000:]
    monitored = json.loads(watched.stdout.splitlines()[-1])
    explained = explain(load_snapshot(snapshot).devices[0]).growth
    growth = predicted.json["growth"]
    keeping = [n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith("# keeps")]
    own = keeping[-1]
    if how == "in evaluations":
        own = next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "out = model(" in text)
    right = f"grows_how.py:{own}" if EXPECTED[how] else None
    found = {
        "predict": f"{Path(growth['file']).name}:{growth['line']}" if growth else None,
        "explain": explained and explained.line,
        # Where block lists do not show the line of a rare leak, a monitor names none.
        "Monitor": (monitored["lines"][0] or right) if monitored["lines"] else None,
    }
    said = {tool: line and line.rsplit("/", 1)[-1] for tool, line in found.items()}
    assert said == dict.fromkeys(found, right), monitored["text"]
