"""Find out from the autograd graph how a loss is reduced over the batch, such as by a mean or a sum."""

# This module reads only names of nodes and the numbers they store. If a divisor is on the GPU, it reads only the
# address of the divisor. It computes and allocates nothing.

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
# With a selection of elements below a mean, parts of a batch may differ in size. This many nodes are searched for one.
_LOOKED_AT: Final = 12
_MOST_BATCHES: Final = 8
_MEAN_REDUCTION: Final = 1  # in ATen's enumeration, 0 stands for none and 2 for the sum


@dataclass(frozen=True, slots=True)
class _Term:
    node: Any
    is_scaled: bool
    is_divided: bool


def form_of_loss(
    root: Any, *, items: int | None = None, counts: Any = None, has_scaler: bool = False, reads_saved: bool = True
) -> LossForm:
    """Return how a loss is reduced over the batch.

    Args:
        root: the tensor on which backward is called.
        items: the batch size; None if unknown.
        counts: the tensor by which the library divides a sum over all parts; None if there is none.
        has_scaler: whether the loss is multiplied by the factor of a GradScaler.
        reads_saved: whether reading a node's saved tensors calls no hooks.
    """
    node = getattr(root, "grad_fn", None)
    if node is None or root.ndim:
        return LossForm.OTHER
    address = counts.data_ptr() if hasattr(counts, "data_ptr") else None
    try:
        terms = list(_terms(node, address, has_scaler=has_scaler, reads_saved=reads_saved))
    except (LookupError, RuntimeError):  # an unknown kind of node, or a node whose saved tensors are freed
        return LossForm.OTHER
    forms = {_form_of(term, items, reads_saved=reads_saved) for term in terms}
    if len(forms) != 1 or (LossForm.COUNTED in forms and len(terms) > 1):
        return LossForm.OTHER
    return forms.pop()


def _form_of(term: _Term, items: int | None, *, reads_saved: bool) -> LossForm:
    name = term.node.name()
    sizes = getattr(term.node, "_saved_self_sym_sizes", ())
    is_of_pairs = (
        items is not None and list(sizes).count(items) > 1
    )  # the loss compares items with each other, and a part has fewer pairs
    if term.is_divided or is_of_pairs:
        return LossForm.OTHER
    if name in _MEANS:
        return LossForm.OTHER if _selects(term.node) else LossForm.MEAN
    if name not in _SUMS and getattr(term.node, "_saved_reduction", None) == _MEAN_REDUCTION:
        if not name.startswith(_COUNTED):
            return LossForm.MEAN
        is_weighed = (
            not reads_saved or term.node._saved_weight is not None
        )  # weighted by class; these weights are not counted here
        return LossForm.OTHER if is_weighed else LossForm.COUNTED
    # A sum may be divided by the size of the part or of the batch; which of the two is unknown.
    return LossForm.OTHER if term.is_scaled else LossForm.SUM


# Raises LookupError if the autograd graph has a node of an unknown kind.
def _terms(node: Any, counts: int | None, *, has_scaler: bool, reads_saved: bool) -> Iterator[_Term]:
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
            if (
                is_constant and other.tolist() == 1
            ):  # for example division by the number of processes, if there is one process
                waiting.append((inner[0], is_scaled, is_divided))
                continue
            is_known = other is not None and not is_constant and other.data_ptr() == counts
            of_scaler = has_scaler and name == "MulBackward0" and not is_constant
            is_unknown = not (is_constant or is_known or of_scaler)
            waiting.append((inner[0], is_scaled or is_constant, is_divided or is_unknown))
        else:
            raise LookupError(name)


def _selects(node: Any) -> bool:
    for _ in range(_LOOKED_AT):
        node = next((each for each, _ in node.next_functions if each is not None), None)
        if node is None:
            return False
        if node.name().startswith(_SELECTS):
            return True
    return False


class LossWatch:
    """Observes how a script computes its loss, and whether its batches contain ignored targets."""

    def __init__(self) -> None:
        self.ignores_targets = False
        """Whether a batch contained targets that the loss ignores, such as -100."""
        self._has_hooks = False
        self._batches = 0

    def install(self) -> None:
        """Install the wrappers."""
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
        """Return how a loss is reduced over the batch, and by which number transformers divides the loss.

        The second value is "counts" for the number of targets, and "parts" for the number of batches per step. An empty
        text means that transformers does not divide the loss.
        """
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots or ())
        if len(roots) != 1:
            return LossForm.OTHER, ""
        counts, share = _share_of_trainer(sys._getframe(1))
        reads = not self._has_hooks
        form = form_of_loss(roots[0], items=items, counts=counts, has_scaler=has_scaler, reads_saved=reads)
        return form, share


def _has_ignored(batch: Any) -> bool:
    tensors = [each for each in tensors_of(batch) if each.device.type == "cpu" and each.dtype is torch.int64]
    return any(bool((each == IGNORED).any()) for each in tensors)


# Returns the number of targets by which transformers divides the loss, and "counts", "parts" or an empty text.
def _share_of_trainer(frame: FrameType | None) -> tuple[Any, str]:
    while frame is not None:
        if frame.f_code.co_name == "training_step" and frame.f_globals.get("__name__") == "transformers.trainer":
            trainer, counts = frame.f_locals.get("self"), frame.f_locals.get("num_items_in_batch")
            if getattr(trainer, "model_accepts_loss_kwargs", False) and counts is not None:
                return counts, "counts"
            return None, "parts" if getattr(trainer, "compute_loss_func", None) is None else ""
        frame = frame.f_back
    return None, ""
