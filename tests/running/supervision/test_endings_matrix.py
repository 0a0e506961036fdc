"""docs/processes.md promises what comes of each ending in each of our processes: here each happens."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.running.supervision.endings import ALONE, HAPPENINGS, TOOLS, observe

SLOW = "ULLAGE_SLOW" in os.environ
DOCUMENT = Path(__file__).parents[3] / "docs" / "processes.md"
_ENDS_WELL = dict.fromkeys(TOOLS, 0) | {"`ullage predict`": 4}
_QUICK = (
    *(("`ullage run`", name) for name in HAPPENINGS if name.startswith(("a d", "its f", "no f", "a n", "SIGS"))),
    *(("`ullage.isolated`", name) for name in HAPPENINGS if name.startswith(("SIGT", "it c", "desc", "its f", "no f"))),
    ("`ullage predict`", "its folder was removed before"),
)
_CELLS = [(tool, name) for tool in TOOLS for name in HAPPENINGS]


def _table() -> dict[tuple[str, str], str]:
    """The promise of each tool and happening, from two tables."""
    promises = {}
    _, checked = DOCUMENT.read_text().split("<!-- checked by tests/running/supervision/test_endings_matrix.py -->\n")
    for text in checked.split("\n\n"):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
        ]
        if rows:
            [_, *tools], _, *rest = rows
            promises |= {(tool, row[0]): cell for row in rest for tool, cell in zip(tools, row[1:], strict=True)}
    return promises


def test_the_table_has_every_cell() -> None:
    assert set(_table()) == set(_CELLS)


@pytest.mark.parametrize(("tool", "name"), _CELLS if SLOW else _QUICK)
def test_it_ends_as_promised(tmp_path: Path, tool: str, name: str) -> None:
    """With this exit code, these words, and nothing left."""
    happening = HAPPENINGS[name]
    other = _other_python()
    more = {"ULLAGE_CUDNN_CACHE": str(tmp_path / "answers")} | ({"OTHER_PYTHON": other} if other else {})
    place = tmp_path / "place"
    place.mkdir()
    observed = observe(tool, happening, place, more)
    if observed is None:
        pytest.skip(f"needs: {happening.needs}")
    if _table()[tool, name] == "as pytest":
        (tmp_path / "alone").mkdir()
        alone = observe(ALONE, happening, tmp_path / "alone", more)
        assert alone is not None
        assert (observed.code, observed.left) == (alone.code, alone.left)
        return
    promised = re.fullmatch(r'(goes on|SIG\w+|\d+)(?: "(.*)")?', _table()[tool, name])
    assert promised is not None
    if promised[1] == "goes on":
        expected = _ENDS_WELL[tool]
    else:
        expected = int(promised[1]) if promised[1].isdecimal() else -int(signal.Signals[promised[1]])
    assert observed.code == expected, observed
    assert (promised[2] or "") in observed.text
    if expected == 0:
        assert "Error" not in observed.text
    assert observed.left == (
        [happening.is_left] if tool in ("`ullage run`", "cuDNN's planner") and happening.is_left else []
    )


def _other_python() -> str:
    """A Python of another version, where there is one."""
    versions = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")), "versions")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}."
    found = [path for path in sorted(versions.glob("*/bin/python")) if not path.parts[-3].startswith(own)]
    return str(found[-1]) if found else ""
