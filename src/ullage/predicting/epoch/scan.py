"""Iterate over a data loader on the host, to find the tensor shapes of every batch of an epoch."""

# The emulated GPU computes nothing, so the order of an epoch and the sizes of its items can be read quickly and in
# full. The state of random number generators is restored afterwards, so that the script gets the same random values.

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from ullage.predicting.epoch.collated import BatchFigures, Collated
from ullage.predicting.epoch.form import Form, elements, form_of
from ullage.predicting.epoch.item_forms import ItemForms, item_forms
from ullage.predicting.epoch.requests import Ints

# The collate formulas are learned from this many batches, and checked with other batches.
_LEARNED: Final = 24
_HEAVIEST: Final = 8


@dataclass(slots=True, kw_only=True)
class Scan:
    """The batches of an epoch in order, with the shapes of each batch."""

    order: list[Any]
    """The item indices in each batch."""
    items: Ints
    shape: Ints
    """The index of each batch's shapes in `forms`, or -1 if the batch was not inspected."""
    forms: list[Form]
    """The distinct shapes of batches."""
    notes: list[str] = field(default_factory=list)


def go_through(
    loader: Any,
    order: Sequence[Any],
    *,
    deadline: float,
    progress: Callable[[str], None],
) -> Scan:
    """Return the tensor shapes of as many batches as the time limit allows.

    Args:
        loader: a DataLoader with a map-style data set.
        order: the batches that its sampler returns in an epoch.
        deadline: the time (`time.monotonic`) at which to stop.
        progress: called with texts about the progress.
    """
    scan = Scan(
        order=list(order),
        items=np.array([len(batch) if isinstance(batch, list | tuple) else 1 for batch in order], np.int64),
        shape=np.full(len(order), -1, np.int64),
        forms=[],
    )
    with _random_numbers_kept():
        if loader.batch_sampler is None or not _foretell(loader, scan, deadline, progress):
            _collate_all(loader, scan, deadline, progress)
    unseen = int((scan.shape < 0).sum())
    if unseen:
        scan.notes.append(
            f"{unseen:,} of {len(order):,} batches were not inspected within the time limit, and are left out; allow "
            "more time with --minutes"
        )
    return scan


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    numbers = sys.modules.get("numpy.random")
    states = random.getstate(), torch.get_rng_state(), numbers.get_state() if numbers else None
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numbers and states[2] is not None:
            numbers.set_state(states[2])


def _foretell(loader: Any, scan: Scan, deadline: float, progress: Callable[[str], None]) -> bool:
    batches = [np.asarray(batch) for batch in scan.order]
    if not batches or any(batch.dtype.kind not in "iu" or batch.ndim != 1 for batch in batches):
        return False
    rng = np.random.default_rng(0)
    _, of_each_count = np.unique(
        scan.items, return_index=True
    )  # the last batch may be the only one with its number of items
    some = np.unique(np.append(rng.permutation(len(batches))[: 2 * _LEARNED], of_each_count[:_LEARNED]))
    rng.shuffle(some)
    forms = [_collated(loader, scan.order[number]) for number in some]
    if [_collated(loader, scan.order[number]) for number in some[:4]] != forms[:4]:
        scan.notes.append(
            "the same batch has different shapes each time it is loaded, so an epoch with another seed needs other "
            "memory"
        )
        return False
    wanted = _in_order(batches, len(loader.dataset))
    share = time.monotonic() + (deadline - time.monotonic()) * 0.6
    items = item_forms(
        loader.dataset,
        wanted,
        deadline=share,
        known_lengths=_that_may_know(loader),
        progress=lambda done: progress(f"inspecting the data: item {done:,} of {len(wanted):,}"),
    )
    if items.assumed:
        scan.notes.append(
            f"{items.assumed:,} of {len(wanted):,} items were not inspected, and are assumed to equal those that were"
        )
    known = _known(items, batches)
    figures = BatchFigures.of(items, [batches[number] for number in known.tolist()])
    if figures is None:
        return False
    place = {number: at for at, number in enumerate(known.tolist())}
    usable = [(place[number], form) for number, form in zip(some.tolist(), forms, strict=True) if number in place]
    if not usable:
        return False
    half = max(1, len(usable) // 2)
    learned = Collated.learned(*_pairs(figures, usable[:half]))
    if learned is None or not learned.holds(*_pairs(figures, usable)):
        learned = Collated.learned(*_pairs(figures, usable))  # a limit that only some batches reach
        if learned is None:
            return False
    dims = learned.foretell(figures)
    distinct, numbers = np.unique(dims, axis=0, return_inverse=True)
    scan.forms = [learned.form(row) for row in distinct.tolist()]
    scan.shape[known] = numbers.reshape(-1)
    if not _heaviest_are_so(loader, scan):
        scan.forms, scan.shape[:] = [], -1
        return False
    return True


def _pairs(figures: BatchFigures, usable: Sequence[tuple[int, Form]]) -> tuple[BatchFigures, list[Form]]:
    return figures.at(np.array([at for at, _ in usable], np.int64)), [form for _, form in usable]


def _in_order(batches: Sequence[Ints], count: int) -> Ints:
    flat = np.concatenate(batches)
    _, first = np.unique(flat, return_index=True)
    return np.asarray(flat[np.sort(first)], np.int64) % max(count, 1)


def _that_may_know(loader: Any) -> list[Any]:
    batch_sampler = loader.batch_sampler
    inner = getattr(batch_sampler, "batch_sampler", None)  # accelerate's
    samplers = [batch_sampler, getattr(batch_sampler, "sampler", None), inner, getattr(inner, "sampler", None)]
    return [sampler for sampler in samplers if sampler is not None]


def _known(items: ItemForms, batches: Sequence[Ints]) -> Ints:
    sizes = np.array([len(batch) for batch in batches], np.int64)
    if not sizes.all():
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    lowest = np.minimum.reduceat(items.numbers[np.concatenate(batches)], starts)
    return np.flatnonzero(lowest >= 0)


def _collated(loader: Any, batch: Any) -> Form:
    return form_of(_fetcher(loader).fetch(batch))


def _fetcher(loader: Any) -> Any:
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    return _MapDatasetFetcher(
        loader.dataset, loader.batch_sampler is not None, loader.collate_fn, getattr(loader, "drop_last", False)
    )


def _heaviest_are_so(loader: Any, scan: Scan) -> bool:
    sizes = np.array([elements(form) for form in scan.forms], np.int64)
    heaviest = np.argsort(-sizes, kind="stable")[:_HEAVIEST]
    firsts = [int(np.flatnonzero(scan.shape == number)[0]) for number in heaviest.tolist()]
    return all(_collated(loader, scan.order[at]) == scan.forms[int(scan.shape[at])] for at in firsts)


def _collate_all(loader: Any, scan: Scan, deadline: float, progress: Callable[[str], None]) -> None:
    fetcher, known = _fetcher(loader), {form: number for number, form in enumerate(scan.forms)}
    told = time.monotonic()
    for number, batch in enumerate(scan.order):
        now = time.monotonic()
        if now > deadline:
            break
        scan.shape[number] = known.setdefault(form_of(fetcher.fetch(batch)), len(known))
        if now - told > 1:
            told = now
            progress(f"inspecting the data: batch {number:,} of {len(scan.order):,}")
    scan.forms = list(known)
