"""What grows among batches of other sizes, and what does not."""

import pytest

from tests.shared.commands import SCRIPTS, Predict

MIB = 1 << 20


def line_of(text: str) -> int:
    lines = (SCRIPTS / "varies.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_batches_that_become_larger_are_no_growth(predict: Predict) -> None:
    """The run goes on as far as it may, and the ends of its first five steps rise."""
    ended = predict("varies.py", "nothing", "--json")
    assert ended.code == 0, ended.error
    assert len(ended.json["steps"]) == 9
    ends = [step["end_allocated_bytes"] for step in ended.json["steps"]]
    assert ends[:5] == sorted(ends[:5])
    assert ended.json["growth"] is None
    assert predict("varies.py", "nothing", "--json", "--steps", "4").json["growth"] is None


@pytest.mark.parametrize(("how", "line"), [("constant", "kept.append(torch"), ("batch", "batch = ")])
def test_what_is_kept_is_found_among_them(predict: Predict, how: str, line: str) -> None:
    ended = predict("varies.py", how, "--json")
    assert ended.code == 0, ended.error
    growth = ended.json["growth"]
    assert growth["line"] == line_of(line)
    # A block that was not split, as too little would be left, is larger than what was asked for.
    assert 4 * MIB <= growth["bytes_per_step"] < 4.5 * MIB or how == "batch"
    assert "'kept'" in growth["holder"]


@pytest.mark.parametrize("sizes", ["several sizes", "one size"])
def test_what_every_second_step_keeps_is_found(predict: Predict, sizes: str) -> None:
    growth = predict("varies.py", "second", sizes, "--json").json["growth"]
    assert growth["file"] == str(SCRIPTS / "varies.py")
    assert 1 * MIB < growth["bytes_per_step"] < 4 * MIB
