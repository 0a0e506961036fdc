"""What can be varied, and how an option is put among the script's arguments."""

import pytest

from ullage.base.errors import UsageError
from ullage.predicting.fitting.axis import LARGEST, Axis


@pytest.mark.parametrize(
    ("text", "option", "low", "high", "multiple"),
    [
        ("--batch-size", "--batch-size", 1, LARGEST, 1),
        ("--batch-size=8..", "--batch-size", 8, LARGEST, 1),
        ("--batch-size=8..64", "--batch-size", 8, 64, 1),
        ("--batch-size=8..64:8", "--batch-size", 8, 64, 8),
        ("--batch-size=5..70:8", "--batch-size", 8, 64, 8),
        ("--batch-size=0..9", "--batch-size", 1, 9, 1),
        ("train.batch=4..8", "train.batch", 4, 8, 1),
        ("-b", "-b", 1, LARGEST, 1),
        ("--batch=:16", "--batch", 16, LARGEST, 16),
    ],
)
def test_ranges(text: str, option: str, low: int, high: int, multiple: int) -> None:
    if text.endswith("=:16"):
        with pytest.raises(UsageError, match="is not an option with a range"):
            Axis.parse(text)
        return
    axis = Axis.parse(text)
    assert (axis.option, axis.low, axis.high, axis.multiple) == (option, low, high, multiple)
    assert axis.value_at(axis.last) == axis.high
    assert axis.position_of(axis.high) == axis.last
    assert axis.position_of(axis.low) == 0
    assert axis.position_of(axis.low - 1) == -1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--batch-size=8", "has one value only; expected a range such as --batch-size=8..64"),
        ("--batch-size=64..8", "contains no value; expected the smaller number first"),
        ("--batch-size=9..15:8:2", "is not an option with a range"),
        ("--batch-size=1..7:8", "contains no value"),
        ("--batch-size=a..b", "is not an option with a range"),
        ("", "is not an option with a range"),
        ("--batch-size=-4..8", "is not an option with a range"),
        ("--b=" + "9" * 500 + "..", "is not an option with a range"),
    ],
)
def test_what_is_no_range_is_told(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Axis.parse(text)


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("--b", (), ("--b", "7")),
        ("--b", ("--b", "2", "x"), ("--b", "7", "x")),
        ("--b", ("x", "--b=2"), ("x", "--b=7")),
        ("--b", ("--bb=2",), ("--bb=2", "--b", "7")),
        ("b", (), ("b=7",)),
        ("b", ("a=1", "b=2"), ("a=1", "b=7")),
        ("--b", ("--b",), ("--b", "--b", "7")),
    ],
)
def test_an_option_keeps_the_form_that_the_arguments_have(
    option: str, given: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert Axis(option=option).put_into(given, 7) == expected


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("bs", ("a=1", "bs=1024"), (1024, 2048)),
        ("--batch-size", ("--batch-size", "8"), (8, 16)),
        ("--batch-size", ("--batch-size=8",), (8, 16)),
        ("--batch-size=1..10", ("--batch-size=8",), (8, 10)),
        ("--batch-size=1..10", ("--batch-size=20",), (10, 10)),
        ("--batch-size=1..64:4", ("--batch-size=10",), (8, 20)),
        ("--batch-size=16..", ("--batch-size=8",), ()),
        ("--batch-size", ("--batch-size=auto",), ()),
        ("--batch-size", ("--batch-size=0",), ()),
        ("--batch-size", (), ()),
    ],
)
def test_a_search_begins_with_the_value_on_the_command_line(
    text: str, given: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """Not where the range has a beginning of its own."""
    assert Axis.parse(text).start_in(given) == expected


def test_doubling_holds_both_ends() -> None:
    assert Axis(option="--n", low=3, high=50).doubling() == [3, 6, 12, 24, 48, 50]
    assert Axis(option="--n", low=3, high=3).doubling() == [3]
    assert Axis(option="--n", low=4, high=8).doubling() == [4, 8]
