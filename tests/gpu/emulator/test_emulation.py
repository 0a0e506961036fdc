"""What `ullage.emulate` returns."""

from dataclasses import asdict

import pytest

import ullage
from ullage.gpu.emulator.emulate import emulate_in


@pytest.mark.parametrize(
    ("count", "line"),
    [(1, "<Emulation: 1 x Tesla T4, 14.74 GiB>"), (2, "<Emulation: 2 x Tesla T4, 14.74 GiB each>")],
)
def test_a_notebook_shows_one_line(count: int, line: str) -> None:
    """As the last line of a cell it is a line of text, and goes on being plain data that compares."""
    emulation = emulate_in({}, "T4", count=count)
    assert repr(emulation) == line
    assert emulation == ullage.Emulation(**asdict(emulation))
    assert emulation != emulate_in({}, "T4", count=count + 1)
