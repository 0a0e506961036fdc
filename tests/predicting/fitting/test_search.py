"""The search finds the largest value that fits, whatever the needs look like, in few rounds where they are a line."""

from collections.abc import Callable, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.search import FitSearch, ProbedNeed

GIB = 1 << 30


def search(axis: Axis, budget: int, need: Callable[[int], int], *, ooms_tell: bool = False) -> tuple[FitSearch, list]:
    """Run a search over a rising need; returns it and its rounds."""
    rounds: list[list[int]] = []

    def probe(values: Sequence[int]) -> Mapping[int, ProbedNeed]:
        rounds.append(list(values))
        return {
            value: ProbedNeed(need(value) if need(value) <= budget or ooms_tell else None, need(value) <= budget)
            for value in values
        }

    found = FitSearch(axis, budget)
    found.run(probe)
    return found, rounds


@st.composite
def rising_needs(draw: st.DrawFn) -> Callable[[int], int]:
    """A need that never falls: a line, a parabola, steps, or a flat stretch before a wall."""
    kind = draw(st.sampled_from(["line", "parabola", "steps", "wall"]))
    base, slope = draw(st.integers(0, 20 * GIB)), draw(st.integers(1, 2 * GIB))
    step, wall = draw(st.integers(1, 50)), draw(st.integers(1, 5000))
    return {
        "line": lambda value: base + slope * value,
        "parabola": lambda value: base + slope * value * value,
        "steps": lambda value: base + slope * (value // step),
        "wall": lambda value: base if value < wall else 100 * GIB,
    }[kind]


@given(
    need=rising_needs(),
    low=st.integers(1, 40),
    length=st.integers(0, 3000),
    multiple=st.integers(1, 16),
    ooms_tell=st.booleans(),
)
def test_it_finds_the_largest_and_proves_it(need, low: int, length: int, multiple: int, *, ooms_tell: bool) -> None:
    low = -(-low // multiple) * multiple
    axis = Axis(option="--n", low=low, high=low + length // multiple * multiple, multiple=multiple)
    found, rounds = search(axis, 24 * GIB, need, ooms_tell=ooms_tell)
    fitting = [value for value in range(axis.low, axis.high + 1, multiple) if need(value) <= 24 * GIB]
    ran = {value for values in rounds for value in values}
    assert found.best == (axis.position_of(fitting[-1]) if fitting else -1)
    if fitting:
        assert fitting[-1] in ran
        assert fitting[-1] == axis.high or fitting[-1] + multiple in ran
    assert all(axis.low <= value <= axis.high and value % multiple == 0 for value in ran)
    assert sum(map(len, rounds)) == len(ran), "no value is run twice"
    assert all(len(values) <= 2 for values in rounds)
    assert len(rounds) <= 24


@given(needs=st.lists(st.integers(20, 28), min_size=1, max_size=60))
def test_where_needs_go_up_and_down_it_ends_below_the_smallest_that_was_seen_not_to_fit(needs: list[int]) -> None:
    """The allocator's rounding makes a larger value need less, now and then."""
    axis = Axis(option="--n", low=1, high=len(needs))
    found, rounds = search(axis, 24 * GIB, lambda value: needs[value - 1] * GIB)
    ran = {value: needs[value - 1] <= 24 for values in rounds for value in values}
    best = axis.value_at(found.best) if found.best >= 0 else 0
    assert best == 0 or ran[best]
    assert best == len(needs) or ran[best + 1] is False
    assert all(fits for value, fits in ran.items() if value <= best)
    assert sum(map(len, rounds)) == len(ran), "no value is run twice"


def test_what_needs_no_more_however_large_ends_the_search() -> None:
    axis = Axis(option="--n")
    flat = FitSearch(axis, 24 * GIB, unbounded=True)
    flat.run(lambda values: {value: ProbedNeed(min(value, 500) * 1000, fits=True) for value in values})
    assert flat.is_flat
    assert max(flat.points) < 1 << 24


@given(base=st.integers(0, 4 * GIB), slope=st.integers(GIB // 100, GIB))
def test_a_line_takes_few_rounds(base: int, slope: int) -> None:
    found, rounds = search(Axis(option="--n"), 24 * GIB, lambda value: base + slope * value)
    assert found.best == (24 * GIB - base) // slope - 1
    assert len(rounds) <= 5


def test_without_an_end_it_doubles_until_memory_ends() -> None:
    found, rounds = search(Axis(option="--n"), 24 * GIB, lambda value: 1 if value < 10_000 else 100 * GIB)
    assert found.best == 9_998
    assert len(rounds) < 20
