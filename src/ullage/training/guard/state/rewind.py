"""Records the state that forward and backward may change, and restores it if they fail.

The state includes random number generators, tensors, attributes, variables of the loss function, and gradients. If a
failed attempt has already added to gradients of earlier calls, the retry skips these additions. If a change cannot be
undone, an error names it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ullage.training.guard.state.copies import digest_of, parameters_in
from ullage.training.guard.state.gradients import EarlierGradients
from ullage.training.guard.state.objects.functions import (
    record_autograd_functions,
    record_function,
    record_methods,
    version_of_autograd_functions,
)
from ullage.training.guard.state.objects.graph import FoundIn, Graph
from ullage.training.guard.state.objects.node import NamesNode
from ullage.training.guard.state.objects.node_of import OF_EVERY_MODULE
from ullage.training.guard.state.random_state import RandomState
from ullage.training.guard.state.settings import TorchSettings
from ullage.training.guard.state.tensors import Kind, Learned, Tensors


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
        self.gradients = EarlierGradients(parameters)
        self._optimizers = optimizers
        self._trained = {id(one) for one in parameters_in(optimizers) if one.requires_grad}
        self._named = {child: name for module in modules for name, child in module.named_modules()}
        self._settings = TorchSettings(list(self._named), parameters)
        registries = (one for module in self._named for one in (module._modules, module._parameters))
        self._registries = [one for one in registries if isinstance(one, dict)]
        self._members = list(self._members_now())
        self._learned = Learned()
        # TorchScript modules have no dictionary of buffers; their buffers are recorded together with their attributes.
        self._buffers = [module._buffers for module in self._named if isinstance(module._buffers, dict)]
        self._tensors: Tensors | None = None
        self._recorded_buffers: list[torch.Tensor | None] = []
        self._spare: list[torch.Tensor] = []
        self._graph: Graph | None = None
        self._autograd_functions = ""
        # After so many steps from now, the record is dropped, because objects of the model have changed: it would hold
        # tensors that nobody uses any more.
        self._drops = 0
        self._around: Graph | None = None
        self._in_batch: Graph | None = None
        self._subject: tuple[Any, Any] = None, None
        self._suspects: list[tuple[str, torch.Tensor, tuple[int, ...] | None]] = []
        self._is_recorded = False

    @property
    def has_grown(self) -> bool:
        """Whether modules or parameters were added to the model, replaced, or removed from it."""
        now = list(self._members_now())
        return len(now) != len(self._members) or not all(map(is_, now, self._members))

    def _members_now(self) -> Iterator[Any]:
        # TorchScript modules have other registries than dictionaries.
        return chain.from_iterable(map(dict.values, self._registries))

    def begin(self, function: Any, batch: Any) -> None:
        """Set the loss function and the batch that the guard runs next. Pass None for a batch that contains only
        tensors.
        """
        self._subject = function, batch
        self._suspects = []

    def end(self) -> None:
        self._subject = None, None
        self._around = self._in_batch = None
        self._suspects = []

    def record(self, *, is_fresh: bool) -> None:
        """Record the state before an attempt. `is_fresh` is True if no parameter has a gradient."""
        self._is_recorded = False  # if recording fails, only gradients are restored
        self.gradients.record(is_fresh=is_fresh)
        self._settings.record()
        functions = version_of_autograd_functions()
        if self._graph is not None and functions == self._autograd_functions and self._graph.update():
            self._record_tensors(is_checked=False)
        else:
            self._drops = _DROPS if self._graph is not None else self._drops
            self._graph, self._autograd_functions = None, functions
            self._record_tensors(is_checked=True)
            self._graph = self._record_model()
        self._record_subject(self._graph)
        self.random_state.record()
        self._is_recorded = True

    def _record_tensors(self, *, is_checked: bool) -> None:
        """Record the parameters and buffers of the model. `is_checked` is True if a buffer may have been replaced."""
        is_other = is_checked and not self._has_same_buffers()
        if self._tensors is None or self._tensors.is_outdated or is_other:
            self._recorded_buffers = self._buffers_now()
            self._tensors = Tensors(self._learned, self._spare if self._tensors is None else self._tensors.copies())
            self._spare = []
            for name, parameter in _names_of(self._named, self.parameters):
                kind = Kind.TRAINED if id(parameter) in self._trained else Kind.FROZEN
                self._tensors.add(name, parameter, kind)
            for module, path in self._named.items():
                _add_buffers(self._tensors, module, path)
        self._tensors.record()

    def _buffers_now(self) -> list[torch.Tensor | None]:
        return list(chain.from_iterable(map(dict.values, self._buffers)))

    def _has_same_buffers(self) -> bool:
        now, before = self._buffers_now(), self._recorded_buffers
        return len(now) == len(before) and all(map(is_, now, before))

    def _record_subject(self, known: Graph) -> None:
        """Record the variables of the loss function and of hooks, and the containers of the batch."""
        function, batch = self._subject
        self._around = Graph(self._learned, set(known.seen))
        for one in (function, *self._settings.own_hooks()):
            record_function(self._around, one, FoundIn.OUTSIDE)
        self._around.tensors.record()
        if batch is not None:
            self._in_batch = in_batch = Graph()
            in_batch.add("batch", batch, FoundIn.BATCH)
            in_batch.tensors.record()

    def _record_model(self) -> Graph:
        """Return a new record of the model's objects, its optimizers, and the variables of its methods."""
        apart = (*self._optimizers, *self._named, *self.parameters, *self._recorded_buffers)
        graph = Graph(self._learned, set(map(id, apart)))
        for name, parameter in _names_of(self._named, self.parameters):
            if type(parameter) is nn.Parameter:
                graph.add(name, vars(parameter), FoundIn.MODEL)
        for module, name in self._named.items():
            _record_module(graph, module, name)
        for optimizer in self._optimizers:
            graph.add(type(optimizer).__name__, optimizer.param_groups, FoundIn.MODEL)
        record_methods(graph, dict.fromkeys(map(type, self._named)))
        record_autograd_functions(graph)
        graph.record()
        return graph

    def after_forward(self) -> None:
        """Find parameters that forward has written and backward or a hook may put back."""
        if self._tensors is not None and self._learned.is_first:
            self._tensors.find_hidden_writes()

    def restore(self) -> set[tuple[int, int]]:
        """Restore the recorded state.

        Returns:
            The additions that the failed attempt has made to gradients of earlier calls.

        Raises:
            RuntimeError: something has changed that was not copied, or gradients that were added to are views of one
                tensor. Everything else has been restored.
        """
        finished = self.gradients.restore()
        if not self._is_recorded:
            return finished
        lost = [*self._found_out(), *self._restore_all_but_gradients()]
        self.gradients.check_apart(finished)
        if lost:
            raise RuntimeError(_text_of_lost(lost))
        return finished

    def _restore_all_but_gradients(self) -> list[str]:
        self._settings.restore()
        self.random_state.restore()
        return [name for one in self._records() for name in one.restore()]

    def _records(self) -> Iterator[Graph | Tensors]:
        # buffers before the attributes that refer to them
        return (one for one in (self._tensors, self._graph, self._around, self._in_batch) if one is not None)

    def changed(self) -> list[str]:
        """Return the names of everything that a test run of forward has changed.

        Random number generators, BatchNorm's statistics and metrics are left out, because no loss depends on them.
        """
        names = [*self._settings.changed(), *(name for one in self._records() for name in one.changed())]
        names += ["gradients, because it calls backward itself"] if self.gradients.have_changed() else []
        return [name for name in names if not name.endswith(_LIST_OF_METRICS)]

    def left_alone(self) -> list[str]:
        """Return the names of changes that the guard does not undo.

        These are numbers and strings outside the model, and new entries of caches.
        """
        has_drawn = self.random_state.are_any_used()
        graphs = [one for one in (self._graph, self._around) if one is not None]
        return [name for one in graphs for name in one.left_alone(has_drawn=has_drawn)]

    @property
    def is_comparing(self) -> bool:
        """Whether the guard is about to check tensors for changes. The check may run out of memory."""
        return bool(self._suspects) or self._learned.is_first

    def suspect(self, batch: Sequence[torch.Tensor]) -> None:
        """Record checksums of the tensors without a copy before a retry.

        They detect writes through `.data`, which do not change the version counter.
        """
        uncopied = [("a tensor of the batch", tensor) for tensor in batch]
        for one in (self._tensors, self._graph, self._around):
            tensors = one.tensors if isinstance(one, Graph) else one
            uncopied += tensors.uncopied() if tensors is not None else ()
        self._suspects = [(name, tensor, digest_of(tensor)) for name, tensor in uncopied]

    def _found_out(self) -> list[str]:
        found = [
            name
            for name, tensor, digest in self._suspects
            if digest is not None and (now := digest_of(tensor)) is not None and now != digest
        ]
        self._learned.written.update(found)
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

    def commit(self) -> None:
        """Drop what is no longer needed of the recorded state, because the attempt has succeeded."""
        self.gradients.record(is_fresh=True)
        self.random_state.discard()
        self._suspects = []
        for graph in (self._graph, self._around):
            if graph is not None:
                graph.tensors.settle()
        self._around = self._in_batch = None
        if self._tensors is not None:
            self._learned.steps += 1
            self._tensors.settle()
            self._learned.is_first = False
            if self._drops and not self._has_same_buffers():
                self._spare, self._tensors, self._recorded_buffers = self._tensors.copies(), None, []
        if self._drops or (self._graph is not None and not self._graph.tensors.is_empty):
            self._drops = max(self._drops - 1, 0)
            self._graph = None

    def mark(self) -> Callable[[], bool]:
        """Record the state, and return a function that restores it.

        The function returns True if it had to set accumulated gradients to None.
        """
        kept = Rewind(self.modules, self.parameters, self.random_state.devices, optimizers=self._optimizers)
        kept._learned, kept._subject = self._learned, self._subject
        kept.record(is_fresh=False)

        def restore() -> bool:
            is_dropped = kept.gradients.drop(kept.gradients.restore())
            lost = kept._restore_all_but_gradients()
            if lost:
                raise RuntimeError(_text_of_lost(lost))
            return is_dropped

        return restore


def _add_buffers(tensors: Tensors, module: nn.Module, path: str) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        return
    is_ignored = _is_metric(module) or isinstance(module, _BatchNorm)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            is_table = name in module._non_persistent_buffers_set or not buffer.is_floating_point()
            kind = Kind.TABLE if is_table else Kind.BUFFER
            tensors.add(f"the buffer {name} of {_text_of(module, path)}", buffer, kind, is_ignored=is_ignored)


def _record_module(graph: Graph, module: nn.Module, name: str) -> None:
    path = _text_of(module, name)
    place = FoundIn.METRIC if _is_metric(module) else FoundIn.MODEL
    if isinstance(module, torch.jit.ScriptModule):
        graph.seen.discard(id(module))
        graph.add(path, module, place)
        return
    for registry in (module._buffers, module._parameters, module._modules):
        graph.seen.add(id(registry))
        graph.add_node(NamesNode(path, registry, counts=True), place)
    attributes = NamesNode(path, vars(module), is_of_attributes=True, left_out=OF_EVERY_MODULE, counts=True)
    graph.add_node(attributes, place)
    for inner, element in attributes.children():
        graph.add(inner, element, place)
    graph.add_classes_of(type(module), place)


def _text_of(module: nn.Module, path: str) -> str:
    return type(module).__name__ + (f" ({path})" if path else "")


def _is_metric(module: nn.Module) -> bool:
    return any(
        kind.__name__ == "Metric" and kind.__module__.startswith("torchmetrics") for kind in type(module).__mro__
    )


def _names_of(named: dict[nn.Module, str], parameters: Sequence[nn.Parameter]) -> Iterator[tuple[str, nn.Parameter]]:
    # each parameter with a name for error messages
    names: dict[int, str] = {}
    for module, prefix in named.items():
        for name, parameter in module._parameters.items():
            names.setdefault(id(parameter), f"{prefix}.{name}" if prefix else name)
    for number, one in enumerate(parameters):
        yield f"the parameter {names.get(id(one), f'{number} of an optimizer')}", one


def _text_of_lost(names: Sequence[str]) -> str:
    several = ", ".join(list(dict.fromkeys(names))[:_NAMES])
    return (
        f"the step ran out of memory after it had changed state that the guard cannot restore: {several}. The step is "
        "not retried, because that would change this state twice. Expected forward to change buffers, or attributes "
        "and small tensors that it changes from the first step on, and lazy modules run once before the first step; "
        "resume from a checkpoint"
    )


# For so many steps after a change, the record of the model is not kept.
_DROPS: Final = 16
# The attribute in which Lightning keeps the metrics of a module by name. Lightning adds it when the first metric is
# logged.
_LIST_OF_METRICS: Final = "._metric_attributes"
# The maximum number of names in an error message.
_NAMES: Final = 6
