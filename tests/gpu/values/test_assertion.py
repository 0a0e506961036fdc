"""A check of a script passes where random numbers replace the real ones; everything else is read as it was drawn."""

from pathlib import Path

import pytest

from tests.shared.inside import INSIDE, inside
from ullage.gpu.values.assertion import passing_truth

if INSIDE:
    import torch

    from ullage.gpu.values.content import Certainty
    from ullage.gpu.values.start import current


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("assert (a >= b).all()", True),
        ("assert (a >= b).all(), 'unordered'", True),
        ("assert torch.allclose(a, b)", True),
        ("assert not torch.isnan(a).any()", False),
        ("assert a.all() and b.all()", True),
        ("assert not (a.any() or b.any())", False),
        ("assert a.max() < 1", True),
        ("assert bool(a.all())", True),
        ("if a.any():\n    raise ValueError", False),
        ("if not a.all():\n    print(1)\n    raise ValueError", True),
        ("if a.all() and not b.any():\n    raise ValueError", None),
        ("if a.any():\n    print(1)", None),
        ("while a.any():\n    raise ValueError", None),
        ("assert a.any().item() == False", None),
        ("assert bool(a.any()) is not True", None),
        ("x = a.any()", None),
        ("if x:\n    assert y\n    raise ValueError", False),
    ],
)
def test_the_value_with_which_a_check_passes(tmp_path: Path, source: str, truth: bool | None) -> None:
    file = tmp_path / "checks.py"
    file.write_text(source + "\n")
    assert passing_truth(str(file), 1) is truth
    file = tmp_path / "inside.py"
    file.write_text("def check(a, b):\n" + "".join(f"    {line}\n" for line in source.splitlines()))
    assert passing_truth(str(file), 2) is truth


def test_without_source_nothing_is_a_check(tmp_path: Path) -> None:
    assert passing_truth(str(tmp_path / "none.py"), 1) is None
    assert passing_truth("<string>", 1) is None


@inside
def test_checks_of_random_numbers_pass_and_branches_do_not_change() -> None:
    """512 random pairs are not in order by chance; a known value fails as on a GPU."""
    boxes = torch.randn(512, 4, device="cuda")
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    assert not (boxes[:, 2:] < boxes[:, :2]).any()
    if (boxes.abs() > 1e-9).all() and (boxes[:, 2:] < boxes[:, :2]).any():
        raise AssertionError
    is_in_order = bool((boxes[:, 2:] >= boxes[:, :2]).all())
    assert not is_in_order
    values = current()
    assert values is not None
    checks = [read for read in values.reads.counts if read.operation == "check"]
    assert len(checks) == 3
    assert {read.certainty for read in checks} == {Certainty.ASSUMED}
    known = torch.tensor([1, 2], device="cuda")
    with pytest.raises(AssertionError):
        assert (known > 1).all()
