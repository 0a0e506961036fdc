"""Predict the tensor shapes of a batch from the shapes of its items."""

# A collate function that pads, packs or truncates computes the dimensions of a batch from few numbers: the number of
# items and, for each dimension of an item, the maximum and the sum, rounded up to a multiple or limited. The formula
# for each dimension is learned from some batches and verified on others. If no formula matches, nothing is predicted.

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.predicting.epoch.form import Form, Layout, dims_of, layout_of
from ullage.predicting.epoch.item_forms import ItemForms
from ullage.predicting.epoch.requests import Ints

_MULTIPLES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """Statistics of each batch: the number of items, and the maximum and sum of each item dimension."""

    items: Ints
    largest: Ints
    """The maximum of each dimension over the items of a batch, one row per batch."""
    total: Ints

    @classmethod
    def of(cls, forms: ItemForms, batches: Sequence[Ints]) -> "BatchFigures | None":
        """Return the sizes of the items in each batch.

        None if an item is unknown, or if items differ in more than their sizes.
        """
        if not batches or layout_of(forms.table) is None:
            return None
        dims = dims_of(forms.table)
        sizes = np.array([len(batch) for batch in batches], np.int64)
        if not sizes.all():
            return None
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        flat = forms.numbers[np.concatenate(batches)]
        width = dims.shape[1]
        largest, total = np.empty((len(batches), width), np.int64), np.empty((len(batches), width), np.int64)
        for column in range(width):
            values = dims[flat, column]
            largest[:, column] = np.maximum.reduceat(values, starts)
            total[:, column] = np.add.reduceat(values, starts)
        return cls(items=sizes, largest=largest, total=total)

    def at(self, numbers: Ints) -> "BatchFigures":
        """Return the statistics of selected batches."""
        return BatchFigures(items=self.items[numbers], largest=self.largest[numbers], total=self.total[numbers])


Formula = Callable[[BatchFigures], Ints]


def _rounded(values: Ints, multiple: int) -> Ints:
    return -(-values // multiple) * multiple


# Default arguments bind the loop variables in each formula. mypy takes these for parameters that `Formula` does not
# have.
def _formulas(width: int, observed: Ints) -> Iterator[Formula]:
    limit = int(observed.max())
    yield lambda figures: np.full(len(figures.items), limit, np.int64)
    yield lambda figures: figures.items
    for column in range(width):
        for multiple in _MULTIPLES:
            for extra in (0, 1, -1):
                yield lambda f, c=column, m=multiple, e=extra: _rounded(f.largest[:, c] + e, m)  # type: ignore[misc]
    for column in range(width):
        for multiple in _MULTIPLES:
            yield lambda f, c=column, m=multiple: _rounded(f.total[:, c], m)  # type: ignore[misc]
    for column in range(width):
        yield lambda f, c=column: f.items * f.largest[:, c]  # type: ignore[misc]
        yield lambda f, c=column: f.total[:, c] + f.items  # type: ignore[misc]
        for multiple in _MULTIPLES:
            yield lambda f, c=column, m=multiple: np.minimum(_rounded(f.largest[:, c], m), limit)  # type: ignore[misc]
            yield lambda f, c=column, m=multiple: np.minimum(_rounded(f.total[:, c], m), limit)  # type: ignore[misc]
    yield lambda figures: figures.items + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collated:
    """Predicts the tensor shapes of a batch from the sizes of its items, with one formula per dimension."""

    layout: Layout
    formulas: tuple[Formula, ...]

    @classmethod
    def learned(cls, figures: BatchFigures, forms: Sequence[Form]) -> "Collated | None":
        """Find a formula that predicts each dimension of a batch, or return None if a dimension has no formula."""
        layout = layout_of(forms)
        if layout is None:
            return None
        dims = dims_of(forms)
        chosen: list[Formula] = []
        for column in range(dims.shape[1]):
            own = dims[:, column]
            held = (f for f in _formulas(figures.largest.shape[1], own) if np.array_equal(f(figures), own))
            formula = next(held, None)
            if formula is None:
                return None
            chosen.append(formula)
        return cls(layout=layout, formulas=tuple(chosen))

    def foretell(self, figures: BatchFigures) -> Ints:
        """Return the predicted sizes of all dimensions, one row per batch."""
        if not self.formulas:
            return np.zeros((len(figures.items), 0), np.int64)
        return np.stack([formula(figures) for formula in self.formulas], axis=1)

    def holds(self, figures: BatchFigures, forms: Sequence[Form]) -> bool:
        """Return whether the batches have the predicted shapes."""
        return layout_of(forms) == self.layout and np.array_equal(self.foretell(figures), dims_of(forms))

    def form(self, dims: Sequence[int]) -> Form:
        """Return the names and shapes of a batch's tensors from the sizes of all dimensions."""
        sizes = iter(dims)
        return tuple((name, tuple(next(sizes) for _ in range(count))) for name, count in self.layout)
