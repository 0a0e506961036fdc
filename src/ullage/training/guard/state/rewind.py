"""Records the state that forward and backward may change, and restores it if they fail.

The state includes random number generators, buffers, attributes, variables of the loss function, and gradients.
Parameters are copied only if forward writes them. If a failed attempt has already added to gradients of earlier calls,
the retry skips these additions. If a change cannot be undone, an error names it.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final, Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ullage.training.guard.state.copies import FIRST_BYTES, SMALL_BYTES, can_be_copied, digest_of, is_equal, version_of
from ullage.training.guard.state.flags import Flags, Hooks
from ullage.training.guard.state.layers import Layers
from ullage.training.guard.state.objects.contents import NOTHING, Contents, WatchedContents, has_own_attributes
from ullage.training.guard.state.objects.function_state import (
    record_autograd_functions,
    record_function,
    record_methods,
)
from ullage.training.guard.state.objects.node_of import OptimizerNode
from ullage.training.guard.state.random_state import RandomState
from ullage.training.guard.state.written_parameters import WrittenParameters, names_of, parameters_in

Additions = Collection[tuple[int, int]]
"""Pairs of a parameter's index and a gradient's version counter. Each pair stands for one addition to a gradient."""


class Rewind:
    """A record of the state that forward and backward may change.

    Call `record()` before an attempt. Afterwards call `commit()` if it succeeded, or `restore()` if it failed.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        parameters: Sequence[nn.Parameter],
        devices: Sequence[torch.device],
        *,
        optimizers: Sequence[Optimizer] = (),
    ) -> None:
        self.modules = modules
        self.parameters = parameters
        self.random_state = RandomState(devices)
        self._buffers = _Buffers(modules)
        self._gradients: dict[int, tuple[torch.Tensor, int]] = {}
        every = list(dict.fromkeys(child for module in modules for child in module.modules()))
        self._flags = Flags(every, parameters)
        trained = set(map(id, parameters_in(optimizers)))
        self._written = WrittenParameters(names_of(modules, parameters), trained)
        self._layers = Layers([module for module in every if _is_layer(module)], parameters)
        self._optimizers = Contents()
        self._optimizers.nodes += [OptimizerNode(type(one).__name__, one, is_state_read=False) for one in optimizers]
        apart = set(map(id, optimizers))
        self._attributes, self._metrics = _attributes_of(modules, parameters, apart)
        self._known = {id(module) for module in every} | set(map(id, parameters)) | {id(self)} | apart
        self._registries = [one for module in every for one in (module._modules, module._parameters)]
        self._registries += self._layers.attributes
        self._size = sum(map(len, self._registries))
        self._hooks = Hooks(every, parameters)
        self._kinds = list(dict.fromkeys(type(module) for module in every if not _is_layer(module)))
        self._around = self._in_forward = self._in_batch = NOTHING
        self._subject: tuple[Any, Any] = None, None
        self._suspects: list[tuple[str, torch.Tensor, tuple[int, ...] | None]] = []
        self._is_recorded = False

    @property
    def has_grown(self) -> bool:
        """Whether modules, parameters or attributes were added to the model or removed from it."""
        return sum(map(len, self._registries)) != self._size

    def begin(self, function: Any, batch: Any) -> None:
        """Set the loss function and the batch that the guard runs next. Pass None for a batch that contains only
        tensors.
        """
        self._subject = function, batch
        self._suspects = []

    def end(self) -> None:
        self._subject = None, None
        self._around = self._in_forward = self._in_batch = NOTHING
        self._suspects = []

    def record(self, *, is_fresh: bool) -> None:
        """Record the state before an attempt. `is_fresh` is True if no parameter has a gradient."""
        self._gradients = {}
        if not is_fresh:
            for index, gradient in enumerate(map(_gradient, self.parameters)):
                if gradient is not None:
                    self._gradients[index] = gradient, gradient._version
        self._is_recorded = False  # if recording fails, only gradients are restored
        self._flags.record()
        self._layers.record()
        for node in self._optimizers.nodes:
            node.record()
        self._attributes.record()
        self._metrics.record()
        self._written.record()
        self._around, self._in_forward, self._in_batch = self._of_subject()
        self.random_state.record()
        self._buffers.record()
        self._is_recorded = True

    def restore(self) -> set[tuple[int, int]]:
        """Restore the recorded state.

        Returns:
            The additions that the failed attempt has made to gradients of earlier calls.

        Raises:
            RuntimeError: something has changed that was not copied, or gradients that were added to are views of one
                tensor. Everything else has been restored.
        """
        finished = self._restore_gradients()
        if not self._is_recorded:
            return finished
        lost = self._found_out() + self._restore_all_but_buffers()
        self._buffers.restore()
        self._check_apart(finished)
        if lost:
            raise RuntimeError(_text_of_lost(lost))
        return finished

    def _restore_gradients(self) -> set[tuple[int, int]]:
        finished: set[tuple[int, int]] = set()
        for index, parameter in enumerate(self.parameters):
            gradient, version = self._gradients.get(index, (None, 0))
            if gradient is not None:
                finished.update((index, added) for added in range(version, gradient._version))
            parameter.grad = gradient
        return finished

    def _restore_all_but_buffers(self) -> list[str]:
        self._flags.restore()
        self._layers.restore()
        self.random_state.restore()
        of_model = (self._written, *self._attributes.records, *self._metrics.records, self._optimizers)
        watched = (*of_model, self._around, self._in_forward, self._in_batch)
        return [name for one in watched for name in one.restore()]

    def _of_subject(self) -> tuple[Contents, Contents, Contents]:
        function, batch = self._subject
        around = in_batch = NOTHING
        in_forward = Contents(self._known, is_foreign_opened=False)
        record_methods(in_forward, self._kinds)
        record_autograd_functions(in_forward)
        if function is not None:
            around = Contents(self._known, is_foreign_opened=False, are_numbers_kept=False)
            record_function(around, function)
            for hook in self._hooks.own():
                record_function(around, hook)
        if batch is not None:
            in_batch = Contents(is_of_batch=True)
            in_batch.add("batch", batch)
        return around, in_forward, in_batch

    def changed(self) -> list[str]:
        """Return the names of everything that a test run of forward has changed.

        Random number generators, BatchNorm's statistics and metrics are left out, because no loss depends on them.
        """
        of_model = (self._flags, self._layers, self._optimizers, self._buffers, self._written)
        held = (*self._attributes.records, self._around, self._in_forward, self._in_batch)
        names = [name for one in (*of_model, *held) for name in one.changed()]
        names += ["gradients, because it calls backward itself"] if self._has_added_to_gradients() else []
        return [name for name in names if not name.endswith(_LIST_OF_METRICS)]

    def _has_added_to_gradients(self) -> bool:
        gradients = (self._gradients.get(index, (None, 0)) for index in range(len(self.parameters)))
        return any(
            parameter.grad is not gradient or (gradient is not None and gradient._version != version)
            for parameter, (gradient, version) in zip(self.parameters, gradients, strict=True)
        )

    def left_alone(self) -> list[str]:
        """Return the names of changes that the guard does not undo.

        These are numbers and strings outside the model, and new entries of caches.
        """
        held = (self._around, self._in_forward, *self._attributes.records)
        caches = [name for one in held for name in one.only_told()]
        return self._around.left_alone() + (caches if caches and self.random_state.are_any_used() else [])

    @property
    def is_comparing(self) -> bool:
        """Whether the guard is about to check tensors for changes. The check may run out of memory."""
        return bool(self._suspects) or self._written.is_first

    def suspect(self, batch: Sequence[torch.Tensor]) -> None:
        """Record checksums of the tensors without a copy before a retry.

        They detect writes through `.data`, which do not change the version counter.
        """
        held = (*self._attributes.records, self._around, self._in_forward)
        uncopied = self._written.uncopied() + [each for one in held for each in one.tensors.uncopied()]
        uncopied += [("a tensor of the batch", tensor) for tensor in batch]
        self._suspects = [(name, tensor, digest_of(tensor)) for name, tensor in uncopied]

    def _found_out(self) -> list[str]:
        found = []
        for name, tensor, digest in self._suspects:
            now = digest_of(tensor) if digest is not None else None
            if now is not None and now != digest:
                found.append(name)
                self._written.learn(name)
        return found

    def check(self) -> None:
        """Check, after a successful retry, that the failed attempt left no changes.

        Raises:
            RuntimeError: a tensor without a copy has changed. Everything else was restored.
        """
        found = self._found_out()
        if found:
            self._suspects = []
            self.restore()
            raise RuntimeError(_text_of_lost(found))

    def _check_apart(self, finished: Additions) -> None:
        # Gradients that are views of one tensor share a version counter, so the additions to each of them cannot be
        # identified.
        if not finished:
            return
        memories = Counter(_memory(gradient) for gradient, _ in self._gradients.values())
        for index in {index for index, _ in finished}:
            several = memories[_memory(self._gradients[index][0])]
            if several > 1:
                raise RuntimeError(
                    f"the gradients of {several} parameters are views of one tensor (as with "
                    "gradient_as_bucket_view=True), and memory ran out after some of these gradients had been added "
                    "to; which ones is not known. Expected a separate tensor for each gradient: use "
                    "zero_grad(set_to_none=True)"
                )

    def commit(self) -> None:
        """Drop the recorded state, because the attempt has succeeded."""
        self._gradients = {}
        self.random_state.discard()
        self._buffers.commit()
        self._suspects = []
        self._written.settle()
        self._attributes.settle()
        self._metrics.settle()

    def mark(self) -> Callable[[], bool]:
        """Copy the record, and return a function that restores the copied state.

        The function returns True if it had to set accumulated gradients to None.
        """
        kept = copy.copy(self)
        kept._flags, kept._layers = copy.copy(self._flags), copy.copy(self._layers)
        kept.random_state, kept._buffers = copy.copy(self.random_state), self._buffers.kept()
        kept._optimizers, kept._written = self._optimizers.kept(), self._written.kept()
        kept._attributes, kept._metrics = self._attributes.kept(), self._metrics.kept()

        def restore() -> bool:
            is_dropped = kept.drop(kept._restore_gradients())
            kept._buffers.write_back()
            lost = kept._restore_all_but_buffers()
            if lost:
                raise RuntimeError(_text_of_lost(lost))
            return is_dropped

        return restore

    def drop(self, finished: Additions) -> bool:
        """If a failed attempt has added to a gradient, set the gradient to None. Return whether there was such a
        gradient.
        """
        for index, _ in finished:
            self.parameters[index].grad = None
        return bool(finished)

    @contextmanager
    def without(self, finished: Additions) -> Iterator[None]:
        """Inside this context, skip gradient contributions that a failed attempt has already accumulated.

        Raises:
            RuntimeError: a gradient received fewer contributions than in the failed attempt.
        """
        if not finished:
            yield
            return
        again = [
            _RepeatedAdditions(self.parameters[index], count)
            for index, count in Counter(index for index, _ in finished).items()
        ]
        try:
            yield
        finally:
            for one in again:
                one.finish()
        if not all(one.is_whole for one in again):
            raise RuntimeError(
                "the attempt that ran out of memory added to a gradient more often than the complete retry did, so the "
                "value of the gradient is not known; expected each backward to add to a gradient equally often: pass "
                "use_reentrant=False to checkpoint(), and do not write gradients in post-accumulate hooks"
            )


def _attributes_of(
    modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], apart: set[int]
) -> tuple[WatchedContents, WatchedContents]:
    # PyTorch's own layers are left out of the first record, because they keep their state in buffers.
    named = {child: name for module in modules for name, child in module.named_modules()}
    metrics = {id(module) for module in named if _is_metric(module)}
    known = {id(module) for module in named if _is_layer(module)}
    known |= apart | set(map(id, parameters)) | {id(module._buffers) for module in named}
    of_python = [module for module in named if isinstance(module._buffers, dict)]
    known |= {id(buffer) for module in of_python for buffer in module._buffers.values()}
    roots = [
        (f"{type(module).__name__}{f' ({name})' if name else ''}", module)
        for module, name in named.items()
        if id(module) not in known
    ]
    own = [(name, one) for name, one in names_of(modules, parameters) if type(one) is nn.Parameter]
    roots += [(name, attributes) for name, one in own if (attributes := vars(one))]
    of_others = [root for root in roots if id(root[1]) not in metrics]
    of_metrics = [root for root in roots if id(root[1]) in metrics]
    return WatchedContents(of_others, known | metrics), WatchedContents(of_metrics, known)


def _is_metric(module: nn.Module) -> bool:
    return any(
        kind.__name__ == "Metric" and kind.__module__.startswith("torchmetrics") for kind in type(module).__mro__
    )


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.") and not has_own_attributes(module)


def _text_of_lost(names: Sequence[str]) -> str:
    several = ", ".join(list(dict.fromkeys(names))[:_NAMES])
    return (
        f"the step ran out of memory after it had changed state that the guard cannot restore: {several}. The step is "
        "not retried, because that would change this state twice. Expected forward to change buffers, or attributes "
        "and small tensors that it changes from the first step on; resume from a checkpoint"
    )


# The attribute in which Lightning keeps the metrics of a module by name. Lightning adds it when the first metric is
# logged.
_LIST_OF_METRICS: Final = "._metric_attributes"
# The maximum number of names in an error message.
_NAMES: Final = 6


class _RepeatedAdditions:
    def __init__(self, parameter: nn.Parameter, count: int) -> None:
        self._parameter = parameter
        self._count = self._left = count
        self._gradient = parameter.grad
        parameter.grad = None
        self._hook = parameter.register_post_accumulate_grad_hook(self._drop)

    def _drop(self, parameter: torch.Tensor) -> None:
        if self._left:
            self._left -= 1
            parameter.grad = None if self._left else self._gradient

    @property
    def is_whole(self) -> bool:
        # also True if the retry made none, because its items do not use the parameter
        return self._left in (0, self._count)

    def finish(self) -> None:
        self._hook.remove()
        if self._left:
            self._parameter.grad = self._gradient


class _Buffers:
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        every = [child for module in modules for child in module.modules()]
        # TorchScript modules have no dictionary of buffers; their buffers are recorded together with their attributes.
        self._modules = [module for module in every if isinstance(module._buffers, dict)]
        self._dicts = [module._buffers for module in self._modules]
        self._full: list[dict[str, torch.Tensor | None]] = []
        self._empty = self._dicts
        self._names: list[str] = []
        self._replaces = False
        self._places: list[tuple[nn.Module, str]] = []
        self._tensors: list[torch.Tensor | None] = []
        self._versions: dict[int, int] = {}
        self._is_recorded = False
        self._copies: dict[int, torch.Tensor] = {}
        self._groups: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._constant: set[int] = set()
        self._watched: list[int] = []

    def record(self) -> None:
        self._is_recorded = False  # if recording fails, no buffer is restored
        tensors = self._now()
        if any(self._empty) or len(tensors) != len(self._tensors) or not all(map(is_, tensors, self._tensors)):
            self._refresh()
        if self._groups:
            with_grad = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)  # noqa: FBT003  # what torch.no_grad does, in a tenth of its time
            try:
                for copies, sources in self._groups:
                    torch._foreach_copy_(copies, sources)
            finally:
                torch._C._set_grad_enabled(with_grad)
        self._versions = {place: _version_of(self._tensors[place]) for place in self._watched}
        self._is_recorded = True

    def _now(self) -> list[torch.Tensor | None]:
        return list(chain.from_iterable(map(dict.values, self._full)))

    def _refresh(self) -> None:
        self._full = [buffers for buffers in self._dicts if buffers]
        self._empty = [buffers for buffers in self._dicts if not buffers]
        names = list(chain.from_iterable(self._full))
        if names != self._names:
            self._names = names
            self._places = [(module, name) for module in self._modules for name in module._buffers]
            self._tensors, self._groups, self._watched = [], [], []
            self._copies.clear()
            self._constant.clear()
        elif self._tensors:
            self._replaces = True
        self._make_copies(self._now())

    def _make_copies(self, tensors: list[torch.Tensor | None]) -> None:
        self._tensors = []
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for place, tensor in enumerate(tensors):
            is_out = tensor is None or place in self._constant or not can_be_copied(tensor)
            if tensor is None or is_out or tensor.nbytes > FIRST_BYTES:
                self._copies.pop(place, None)
                continue
            copy = self._copies.get(place)
            if copy is None or _form(copy) != _form(tensor):
                copy = self._copies[place] = torch.empty_like(tensor, requires_grad=False)
            copies, sources = groups.setdefault((tensor.device, tensor.dtype), ([], []))
            copies.append(copy)
            sources.append(tensor)
        self._tensors, self._groups = tensors, list(groups.values())
        self._watched = [
            place
            for place, tensor in enumerate(tensors)
            if tensor is not None and (place not in self._copies or tensor.nbytes > SMALL_BYTES)
        ]

    def restore(self) -> None:
        if not self._is_recorded:
            return
        self.write_back()
        tensors = self._tensors
        for place in self._watched:
            tensor = tensors[place]
            if tensor is None or place in self._copies or _version_of(tensor) == self._versions[place]:
                continue  # copied buffers need no version check, which would miss batch_norm's writes to statistics
            module, name = self._places[place]
            reset: Any = getattr(module, "reset_running_stats", None)
            if reset is not None and self._versions[place] == _LAZY:
                reset()
                self._tensors, self._is_recorded = [], False  # from now on there are values to copy
                continue
            raise RuntimeError(
                f"the buffer {name} of {type(module).__name__} (shape {tuple(tensor.shape)}) changed in the step that "
                "ran out of memory, and it was not copied; expected that a buffer of more than 256 MiB changes from "
                "the first step on or never, that a sparse or expanded buffer never changes, and that lazy modules "
                "were run once before the first step"
            )

    def write_back(self) -> None:
        known = {(id(module), name) for module, name in self._places}
        for module in self._modules:
            for name in [name for name in module._buffers if (id(module), name) not in known]:
                delattr(module, name)
        for place, ((module, name), tensor) in enumerate(zip(self._places, self._tensors, strict=True)):
            module._buffers[name] = tensor
            if tensor is not None and place in self._copies:
                with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                    tensor.copy_(self._copies[place])

    def changed(self) -> list[str]:
        if not self._is_recorded:
            return []
        found = []
        for place, ((module, name), tensor) in enumerate(zip(self._places, self._tensors, strict=True)):
            now, copy = module._buffers.get(name), self._copies.get(place)
            is_same = now is tensor and (
                (copy is None and (place not in self._versions or _version_of(now) == self._versions[place]))
                or (copy is not None and now is not None and is_equal(now, copy))
            )
            if not is_same and not isinstance(module, _BatchNorm):
                found.append(f"the buffer {name} of {type(module).__name__}")
        return found

    def kept(self) -> Self:
        kept = copy.copy(self)
        kept._copies = {place: one.clone() for place, one in self._copies.items()}
        return kept

    def commit(self) -> None:
        if not (self._watched or self._replaces):
            return
        tensors = self._now()
        is_same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not is_same or _LAZY in self._versions.values():
            self._tensors, self._groups, self._watched = [], [], []
            self._is_recorded = False
            return
        constant = [place for place in self._watched if place in self._copies and self._is_unchanged(place)]
        if constant:
            self._constant.update(constant)
            self._tensors, self._watched = [], []  # the lists are built again without these buffers
            self._is_recorded = False

    def _is_unchanged(self, place: int) -> bool:
        # A persistent buffer of floating-point numbers never counts as a constant table. A write through `.data` could
        # change it without changing its version counter.
        module, name = self._places[place]
        tensor = self._tensors[place]
        is_made = tensor is not None and tensor.is_floating_point() and name not in module._non_persistent_buffers_set
        return not is_made and _version_of(tensor) == self._versions[place]


_LAZY: Final = -2


def _version_of(tensor: torch.Tensor | None) -> int:
    # -1 for an inference tensor, -2 for a lazy or missing tensor
    if tensor is None or is_lazy(tensor):
        return _LAZY
    return version_of(tensor)


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


_gradient: Final = attrgetter("grad")
