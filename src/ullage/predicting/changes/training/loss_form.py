"""How a loss is made of its batch, read from autograd's graph between it and what is reduced to one number.

Names of nodes and the numbers that they keep are read alone, and of a divisor on the card where it lies: nothing is
computed and nothing allocated.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
import torch.utils.data.dataloader

from ullage.predicting.changes.training.facts import IGNORED, LossForm
from ullage.predicting.changes.training.wrapping import wrap
from ullage.training.guard.splitting.batch import tensors_of

_KEEPS: Final = frozenset({"NegBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ViewBackward0"})
_SCALES: Final = frozenset({"MulBackward0", "DivBackward0"})
_ADDS: Final = frozenset({"AddBackward0", "SubBackward0"})
_MEANS: Final = frozenset({"MeanBackward0", "MeanBackward1"})
_SUMS: Final = frozenset({"SumBackward0", "SumBackward1"})
_COUNTED: Final = ("NllLossBackward", "NllLoss2DBackward", "NllLossNdBackward")
_SELECTS: Final = ("IndexBackward", "MaskedSelectBackward", "TakeBackward")
_MOST_NODES: Final = 64
_LOOKED_AT: Final = 12
"""The depth behind a mean at which a selection of some elements is looked for: each part may have another number."""
_MOST_BATCHES: Final = 8
_MEAN_REDUCTION: Final = 1  # of ATen's enumeration: 0 is none, 2 is the sum


@dataclass(frozen=True, slots=True)
class _Term:
    """A node that reduces what the loss is made of, and how it came to the loss."""

    node: Any
    is_scaled: bool
    """Whether it is multiplied or divided by a constant."""
    is_divided: bool
    """Whether it is divided by a tensor that nobody here knows."""


def form_of_loss(
    root: Any, *, items: int | None = None, counts: Any = None, has_scaler: bool = False, reads_saved: bool = True
) -> LossForm:
    """Return the form of a loss.

    Args:
        root: what the backward pass begins at.
        items: the size of the batch, where it is known.
        counts: the tensor by which the library divides a sum, of all parts together; None where there is none.
        has_scaler: whether a loss is multiplied by a GradScaler's factor.
        reads_saved: whether nobody's hooks would be called if what a node keeps is looked at.
    """
    node = getattr(root, "grad_fn", None)
    if node is None or root.ndim:
        return LossForm.OTHER
    address = counts.data_ptr() if hasattr(counts, "data_ptr") else None
    try:
        terms = list(_terms(node, address, has_scaler=has_scaler, reads_saved=reads_saved))
    except (LookupError, RuntimeError):  # a node of an unknown kind, or one whose tensors are gone
        return LossForm.OTHER
    forms = {_form_of(term, items, reads_saved=reads_saved) for term in terms}
    if len(forms) != 1 or (LossForm.COUNTED in forms and len(terms) > 1):
        return LossForm.OTHER
    return forms.pop()


def _form_of(term: _Term, items: int | None, *, reads_saved: bool) -> LossForm:
    name = term.node.name()
    sizes = getattr(term.node, "_saved_self_sym_sizes", ())
    is_of_pairs = items is not None and list(sizes).count(items) > 1  # items are compared: parts would compare fewer
    if term.is_divided or is_of_pairs:
        return LossForm.OTHER
    if name in _MEANS:
        return LossForm.OTHER if _selects(term.node) else LossForm.MEAN
    if name not in _SUMS and getattr(term.node, "_saved_reduction", None) == _MEAN_REDUCTION:
        if not name.startswith(_COUNTED):
            return LossForm.MEAN
        is_weighed = not reads_saved or term.node._saved_weight is not None  # by classes: nobody counts them here
        return LossForm.OTHER if is_weighed else LossForm.COUNTED
    # Of a sum over a number nobody knows whether that is the part's size or the batch's.
    return LossForm.OTHER if term.is_scaled else LossForm.SUM


def _terms(node: Any, counts: int | None, *, has_scaler: bool, reads_saved: bool) -> Iterator[_Term]:
    """Yield what is added up to the loss.

    Raises:
        LookupError: a node is of a kind that is not known.
    """
    waiting, seen = [(node, False, False)], 0
    while waiting:
        current, is_scaled, is_divided = waiting.pop()
        seen += 1
        name = current.name() if current is not None else ""
        inner = [each for each, _ in current.next_functions if each is not None] if current is not None else []
        if seen > _MOST_NODES:
            raise LookupError(name)
        if name in _MEANS | _SUMS or getattr(current, "_saved_reduction", None):
            yield _Term(current, is_scaled, is_divided)
        elif name in _KEEPS and len(inner) == 1:
            waiting.append((inner[0], is_scaled, is_divided))
        elif name in _ADDS and inner:
            waiting += [(each, is_scaled, is_divided) for each in inner]
        elif name in _SCALES and len(inner) == 1 and reads_saved:
            other = current._saved_other
            is_constant = other is not None and other.device.type == "cpu" and not other.ndim
            if is_constant and other.tolist() == 1:  # as by the number of processes, where there is one
                waiting.append((inner[0], is_scaled, is_divided))
                continue
            is_known = other is not None and not is_constant and other.data_ptr() == counts
            of_scaler = has_scaler and name == "MulBackward0" and not is_constant
            is_unknown = not (is_constant or is_known or of_scaler)
            waiting.append((inner[0], is_scaled or is_constant, is_divided or is_unknown))
        else:
            raise LookupError(name)


def _selects(node: Any) -> bool:
    """Tell whether a mean is one of selected elements."""
    for _ in range(_LOOKED_AT):
        node = next((each for each, _ in node.next_functions if each is not None), None)
        if node is None:
            return False
        if node.name().startswith(_SELECTS):
            return True
    return False


class LossWatch:
    """Watches what tells how losses are made: hooks on what is saved, and targets that are ignored."""

    def __init__(self) -> None:
        self.ignores_targets = False
        """Whether a loader gave a batch with targets that are ignored."""
        self._has_hooks = False
        self._batches = 0

    def install(self) -> None:
        """Put the wrappers in place."""
        wrap(torch.autograd.graph.saved_tensors_hooks, "__enter__", self._hooks_entered)
        wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", self._batch_given)

    def _hooks_entered(self, entered: Any, context: Any) -> Any:
        self._has_hooks = True
        return entered(context)

    def _batch_given(self, given: Any, batches: Any) -> Any:
        batch = given(batches)
        if self._batches < _MOST_BATCHES and not self.ignores_targets:
            self._batches += 1
            self.ignores_targets = _has_ignored(batch)
        return batch

    def form(self, roots: Any, items: int | None, *, has_scaler: bool) -> tuple[LossForm, str]:
        """Return the form of a loss, and by what transformers' loop divides that of a part."""
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots or ())
        if len(roots) != 1:
            return LossForm.OTHER, ""
        counts, share = _share_of_trainer(sys._getframe(1))
        reads = not self._has_hooks
        form = form_of_loss(roots[0], items=items, counts=counts, has_scaler=has_scaler, reads_saved=reads)
        return form, share


def _has_ignored(batch: Any) -> bool:
    """Tell whether a batch on the host has a target that cross entropy ignores."""
    tensors = [each for each in tensors_of(batch) if each.device.type == "cpu" and each.dtype is torch.int64]
    return any(bool((each == IGNORED).any()) for each in tensors)


def _share_of_trainer(frame: FrameType | None) -> tuple[Any, str]:
    """Return the count of targets by which transformers' loop divides, and the word for what it divides by."""
    while frame is not None:
        if frame.f_code.co_name == "training_step" and frame.f_globals.get("__name__") == "transformers.trainer":
            trainer, counts = frame.f_locals.get("self"), frame.f_locals.get("num_items_in_batch")
            if getattr(trainer, "model_accepts_loss_kwargs", False) and counts is not None:
                return counts, "counts"
            return None, "parts" if getattr(trainer, "compute_loss_func", None) is None else ""
        frame = frame.f_back
    return None, ""
