"""Bytes to text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.errors import UsageError
from ullage.base.units import GIB, KIB, MIB, TIB, is_size, parse_bytes, text_of_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 * GIB),
        ("24 GiB", 24 * GIB),
        (" 24gib ", 24 * GIB),
        ("24GB", 24 * GIB),
        ("16384MiB", 16 * GIB),
        ("1.5TiB", 3 * TIB // 2),
        (".5 MB", MIB // 2),
        ("2.GiB", 2 * GIB),
        ("3 KB", 3 * KIB),
        ("+7 B", 7),
        ("1.9 B", 1),
        ("0GiB", 0),
        ("-0 B", 0),
        ("0", 0),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str, n_bytes: int) -> None:
    """The unit's case and its "i" change nothing, and a fraction of a byte is dropped."""
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "24", "GiB", "24G", "1e3 GiB", "24 GiB!", "1,5 GiB", "nan GiB", "٣GiB", "9" * 5000 + "GiB"]
)
def test_what_is_not_a_size_is_said_with_an_example(text: str) -> None:
    """A text without a number or a unit is refused, and never with an error of int()."""
    assert not is_size(text)
    with pytest.raises(UsageError, match="is not a size; expected a number and a unit, such as 24GiB"):
        parse_bytes(text)


def test_a_negative_size_is_refused() -> None:
    """A negative size is understood, and refused with the value in the text."""
    assert is_size("-24GiB")
    with pytest.raises(UsageError) as caught:
        parse_bytes(" -24GiB")
    assert str(caught.value) == "'-24GiB' is negative; expected a size of 0 or more bytes, such as 24GiB"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (12_900_000, "12.3 MiB"),
        (25_383_338_082, "23.64 GiB"),
        (3 * TIB // 2, "1.50 TiB"),
        (2000 * TIB, "2000.00 TiB"),
        (-12_900_000, "-12.3 MiB"),
        (-5, "-5 B"),
    ],
)
def test_bytes_are_written_for_people(n_bytes: int, text: str) -> None:
    """MiB have one decimal, GiB and TiB two; a difference keeps its sign."""
    assert text_of_bytes(n_bytes) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(MIB - 1, "1.0 MiB"), (GIB - 1, "1.00 GiB"), (TIB - 1, "1.00 TiB")])
def test_rounding_moves_on_to_the_next_unit(n_bytes: int, text: str) -> None:
    """No text says 1024.0 of a unit."""
    assert text_of_bytes(n_bytes) == text


@given(st.integers(min_value=-(2**60), max_value=2**60))
def test_what_is_written_can_be_read_back(n_bytes: int) -> None:
    """The text is within half of its last digit of the bytes: at most 1 part in 20 of a unit."""
    read = parse_bytes(text_of_bytes(abs(n_bytes)))
    assert abs(read - abs(n_bytes)) <= abs(n_bytes) * 0.05 + 1
