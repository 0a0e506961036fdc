"""Find the tensor shapes of every item of a data set, if possible without fetching every item."""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ullage.predicting.epoch.form import Form, dims_of, form_of, layout_of
from ullage.predicting.epoch.requests import Ints

# The lengths that the data set states are checked on this many items.
_SAMPLE: Final = 48
_AT_ONCE: Final = 512
# If fetching all items takes too long and this many items have equal shapes, all are assumed to have these shapes.
_ALIKE: Final = 2048
_ALIKE_SECONDS: Final = 10.0
_LENGTH_NAMES: Final = ("lengths", "length", "sizes", "num_tokens")


@dataclass(slots=True, kw_only=True)
class ItemForms:
    """The tensor shapes of every item of a data set. Equal shapes are stored once."""

    numbers: Ints
    """The index of each item's shapes in the list of distinct shapes, or -1 if unknown."""
    table: list[Form]
    how: str
    """A text for reports that says how the shapes were found."""
    assumed: int = 0
    """The number of items that were not fetched and are assumed to have the usual shapes."""


def item_forms(
    dataset: Any,
    wanted: Iterable[int],
    *,
    deadline: float,
    known_lengths: Iterable[Any] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> ItemForms:
    """Return the tensor shapes of as many of the wanted items as the time limit allows.

    Args:
        dataset: a map-style data set.
        wanted: item indices without repetition, the most important first.
        deadline: the time (`time.monotonic`) at which to stop.
        known_lengths: objects that may know item lengths, such as samplers.
        progress: called from time to time with the number of items that are done.
    """
    count = len(dataset)
    found = _from_lengths(dataset, count, known_lengths)
    return found if found is not None else _fetched(dataset, count, wanted, deadline, progress)


def _from_lengths(dataset: Any, count: int, known_lengths: Iterable[Any]) -> ItemForms | None:
    if count < 2 * _SAMPLE:
        return None
    sample = np.unique(np.linspace(0, count - 1, _SAMPLE).astype(np.int64))
    forms = [form_of(dataset[int(index)]) for index in sample]
    if layout_of(forms) is None:
        return None
    dims = dims_of(forms)
    for how, lengths in _candidates(dataset, count, known_lengths):
        own = lengths[sample]
        offsets = dims - own[:, None]
        follows = (offsets == offsets[:1]).all(axis=0)
        constant = (dims == dims[:1]).all(axis=0)
        if len(np.unique(own)) > 1 and not constant.all() and (follows | constant).all():
            distinct, numbers = np.unique(lengths, return_inverse=True)
            table = [_shifted(forms[0], np.where(constant, 0, length - int(own[0]))) for length in distinct.tolist()]
            return ItemForms(numbers=numbers.astype(np.int64), table=table, how=how)
    return None


def _shifted(form: Form, by: Ints) -> Form:
    changes = iter(by.tolist())
    return tuple((name, tuple(size + next(changes) for size in shape)) for name, shape in form)


def _candidates(dataset: Any, count: int, known_lengths: Iterable[Any]) -> Iterable[tuple[str, Ints]]:
    for owner in (dataset, *known_lengths):
        for name in _LENGTH_NAMES:
            lengths = _ints(getattr(owner, name, None), count)
            if lengths is not None:
                yield f"{type(owner).__name__}.{name}", lengths
    yield from _arrow_lengths(dataset, count)


def _ints(value: Any, count: int) -> Ints | None:
    if value is None or callable(value):
        return None
    try:
        lengths = np.asarray(value.tolist() if hasattr(value, "tolist") else value)
    except (TypeError, ValueError):
        return None
    return lengths.astype(np.int64) if lengths.shape == (count,) and lengths.dtype.kind in "iu" else None


# The lengths of lists in a `datasets.Dataset` are known without reading the lists.
def _arrow_lengths(dataset: Any, count: int) -> Iterable[tuple[str, Ints]]:
    library = sys.modules.get("datasets")
    if library is None or not isinstance(dataset, library.Dataset):
        return
    import pyarrow.compute

    order = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    for name in dataset.column_names:
        column = dataset.data.column(name)
        try:
            if name in _LENGTH_NAMES:
                lengths = column.to_numpy()
            else:
                lengths = pyarrow.compute.list_value_length(column).to_numpy()
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
            continue
        if order is not None:
            lengths = lengths[order]
        if (own := _ints(lengths, count)) is not None:
            yield f"column {name}", own


def _fetched(
    dataset: Any, count: int, wanted: Iterable[int], deadline: float, progress: Callable[[int], None]
) -> ItemForms:
    numbers = np.full(count, -1, np.int64)
    known: dict[Form, int] = {}
    began, done = time.monotonic(), 0
    several = getattr(dataset, "__getitems__", None)
    indices = np.fromiter(wanted, np.int64)
    for start in range(0, len(indices), _AT_ONCE):
        now = time.monotonic()
        is_enough = len(known) == 1 and done >= _ALIKE and now - began > _ALIKE_SECONDS
        if now > deadline or is_enough:
            break
        some = indices[start : start + _AT_ONCE].tolist()
        items = several(some) if callable(several) else map(dataset.__getitem__, some)
        for index, item in zip(some, items, strict=True):
            numbers[index] = known.setdefault(form_of(item), len(known))
        done += len(some)
        progress(done)
    assumed = len(indices) - done if len(known) == 1 and done >= _ALIKE else 0
    if assumed:
        numbers[indices[done:]] = 0
    return ItemForms(numbers=numbers, table=list(known), how="every item", assumed=assumed)
