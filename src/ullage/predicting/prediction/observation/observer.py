"""Observe the training steps, the phases, and the owners of GPU memory of a script.

The observer uses PyTorch's global hooks. It also wraps `nn.Module.__call__`, the entry of the autograd engine, and
`GradScaler.step`. It stores addresses instead of tensors, so that it keeps no memory alive.
"""

import functools
import gc
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as optim_module

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Journal, Phase
from ullage.gpu.tracing.source import Line, callers_line
from ullage.gpu.values.content import Certainty
from ullage.gpu.values.reads import ReadKind, Reads
from ullage.predicting.prediction.observation.ending import SeenOom
from ullage.predicting.prediction.observation.graph_capture import GraphCapture
from ullage.predicting.prediction.observation.role import Moments, Note
from ullage.predicting.prediction.phases.hooks import PhaseHooks
from ullage.predicting.prediction.phases.spans import Marks, NotedCall, reached
from ullage.training.ownership.contents import (
    gradients_of,
    optimizer_tensors,
    owned_by,
    parts_of_weights,
    tensors_inside,
)
from ullage.training.ownership.storage import addresses, is_of_torch_func, tensors_in

# ATen names (torch 2.6 to 2.15) of operators whose output size depends on values in GPU memory.
SHAPE_OPS = frozenset(
    (
        *("nonzero", "argwhere", "masked_select", "bincount", "one_hot", "repeat_interleave_Tensor", "nms"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
        *("_to_sparse", "_to_sparse_sparse_dim", "_coalesce"),
    )
)
_TRUTH_BYTES, _WHOLE_BYTES = 1, 8
_ROLES = tuple(Role)
# The position of the inputs among the arguments of `_engine_run_backward`.
_INPUTS = 4


class Observer:
    """Observe training steps, phases, and owners of GPU memory between the calls of `install` and `remove`.

    A step ends when an optimizer of torch.optim ends its step. Without an optimizer, a step ends at the next forward or
    backward pass after a backward pass. `on_step(number)` is called at the end of each step. `on_recount()` is called
    when the script creates its optimizer after the first steps; counting then restarts at zero.
    """

    def __init__(
        self, journal: Journal, reads: Reads, on_step: Callable[[int], None], on_recount: Callable[[], None]
    ) -> None:
        self.step_ends: list[int] = []
        """The number of allocator events at the end of each training step."""
        self.has_optimizer = False
        """Whether the script has created an optimizer of torch.optim."""
        self.reads = reads
        """The tensor values that the script read on the CPU."""
        self.backward_lines: list[tuple[int, Line | None]] = []
        """The index of each backward pass among the allocator events, and the user's source line that started it."""
        self.module_names: list[str] = [""]
        """The names of modules. The position of a name is the module's ID, and 0 means no module."""
        self.moments = Moments()
        """The numbers of allocator events at which forward and backward passes began and ended."""
        self.ooms: list[SeenOom] = []
        """All out-of-memory errors of the run, including errors that the script handled."""
        self.before_pass: Callable[[], None] | None = None
        """A function that is called before each forward pass, or None."""
        self.phases = PhaseHooks(journal)
        """The hooks that observe evaluation, saving, loading and `generate`."""
        # Notes are plain numbers in arrays. One object per note would change when Python collects garbage, and so when
        # it frees
        # the script's tensors in reference cycles.
        self._note_indices, self._note_addresses, self._note_roles = array("q"), array("q"), array("b")
        self._journal = journal
        self._on_step = on_step
        self._on_recount = on_recount
        self.graphs = GraphCapture(lambda: len(self.step_ends), self._end_step)
        self._has_passed_back = False
        self._main_thread = threading.get_ident()
        self._phase = Phase.OTHER
        self._in_forward = False
        self._phases_before_optimizer: list[Phase] = []
        self._stepping: weakref.ref[Any] | None = None
        self._backward_depth = 0
        self._first_optimizer: weakref.ref[Any] | None = None
        self._optimizer_steps = 0
        # Python reuses the `id()` of an object that the script has deleted. These tables drop such objects.
        self._parameters: weakref.WeakValueDictionary[int, nn.Parameter] = weakref.WeakValueDictionary()
        self._optimizers: weakref.WeakValueDictionary[int, torch.optim.Optimizer] = weakref.WeakValueDictionary()
        self._named: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._module_numbers: dict[int, int] = {}
        # For each module number: the elements of the module's own parameters, its calls, and its calls in backward
        # passes.
        self._module_sizes, self._calls, self._calls_again = (array("q", [0]) for _ in range(3))
        self._roots: dict[int, tuple[int, weakref.ref[nn.Module], bool]] = {}
        self._undo: list[Callable[[], None]] = []
        self._largest_input: tuple[int, str] = (0, "")

    @property
    def largest_input(self) -> str:
        """The shape and the data type of the largest input of a forward pass, such as "8 x 2,048 (int64)". Empty
        without a forward pass with inputs.
        """
        return self._largest_input[1]

    @property
    def notes(self) -> list[Note]:
        """The recorded modules and optimizers that own GPU memory."""
        roles = (_ROLES[number] for number in self._note_roles)
        return [Note(*note) for note in zip(self._note_indices, self._note_addresses, roles, strict=True)]

    @property
    def recomputed_share(self) -> float | None:
        """The fraction of forward passes that backward passes computed again, weighted by parameters. It is None
        without a forward pass.
        """
        first, again = (
            sum(size * count for size, count in zip(self._module_sizes, counts, strict=True))
            for counts in (self._calls, self._calls_again)
        )
        return again / first if first else None

    @property
    def marks(self) -> Marks:
        """The recorded calls and passes that show the phases of the run."""
        return self.phases.marks(self.moments.backward_starts, self.step_ends)

    def reached(self) -> set[str]:
        """Return the phases that the run has reached after its first training step: "eval", "save"."""
        return reached(self.marks)

    def install(self) -> None:
        """Install all hooks into torch."""
        handles = [
            optim_module.register_optimizer_step_pre_hook(self._before_optimizer),
            optim_module.register_optimizer_step_post_hook(self._after_optimizer),
        ]
        self._undo = [handle.remove for handle in handles]
        self._watch_calls()
        for owner in (torch.autograd, torch.autograd.graph):
            self._wrap(owner, "_engine_run_backward", self._around_backward)
        self._wrap(GradScaler, "step", self._around_scaler_step)
        self._wrap(torch.optim.Optimizer, "__init__", self._around_optimizer_made)
        self.graphs.install(self._wrap)
        self.phases.install()
        # Attach the observer when CUDA is initialised: attaching makes the allocator read its settings, which the
        # script may
        # still change before that.
        binding: Any = torch._C  # PyTorch's type stubs do not list the observer.
        torch.cuda._lazy_call(lambda: binding._cuda_attach_out_of_memory_observer(self._on_oom))
        self._journal.on_value_read(self._on_read)

    def remove(self) -> None:
        """Remove all hooks except the out-of-memory observer, which PyTorch cannot detach."""
        self.phases.remove()
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    # ---- phases

    def _enter(self, phase: Phase) -> Phase:
        previous, self._phase = self._phase, phase
        self._journal.set_phase(phase)
        return previous

    # The wrapper adds one stack frame per call. PyTorch's global module hooks would take far more time.
    def _watch_calls(self) -> None:
        original = nn.Module.__call__
        get_ident, main_thread = threading.get_ident, self._main_thread
        is_compiling = torch.compiler.is_compiling
        number_of, set_module = self._module_numbers.get, self._journal.set_module
        calls, calls_again = self._calls, self._calls_again

        @functools.wraps(original)
        def call(module: nn.Module, /, *arguments: Any, **keywords: Any) -> Any:
            # Only the outermost call on the main thread begins a forward pass. Replicas of DataParallel do not, nor
            # does a
            # recomputation by checkpointing during the backward pass.
            if is_compiling():  # first check: torch.compile must not trace the rest
                return original(module, *arguments, **keywords)
            if self._in_forward and get_ident() == main_thread and (number := number_of(id(module))):
                calls[number] += 1
                outer = set_module(number)
                try:
                    return original(module, *arguments, **keywords)
                finally:
                    set_module(outer)
            if self._backward_depth and (number := number_of(id(module))):
                calls_again[number] += 1
            if self._in_forward or self._backward_depth or get_ident() != main_thread:
                return original(module, *arguments, **keywords)
            self._before_forward(module, arguments, keywords)
            previous = self._enter(Phase.FORWARD)
            self._in_forward = True
            number = number_of(id(module), 0)
            calls[number] += 1
            set_module(number)
            try:
                return original(module, *arguments, **keywords)
            finally:
                set_module(0)
                self._in_forward = False
                self.phases.leave_forward()
                self._enter(previous)

        nn.Module.__call__ = call  # type: ignore[method-assign]  # for every module there is and will be
        self._undo.append(lambda: setattr(nn.Module, "__call__", original))

    def _before_forward(self, module: nn.Module, arguments: Any, keywords: Any) -> None:
        self.end_backward_step()
        if self.before_pass is not None:
            self.before_pass()
        self.moments.forward_starts.append(self._journal.length() - 1)
        is_trained = self._note_module(module)
        self.phases.enter_forward(is_training=getattr(module, "training", True), is_trained=is_trained)
        # Some programs define a class for a batch. Next to tensors, an object is more likely a cache.
        tensors = [*tensors_in(arguments), *tensors_in(keywords)] or tensors_inside([arguments, keywords])
        # The output of another module is an activation, which is recognised by its grad_fn.
        inputs = [tensor for tensor in tensors if tensor.grad_fn is None]
        self._note(Role.INPUTS, inputs)
        for tensor in inputs:
            if tensor.numel() > self._largest_input[0]:
                # The ragged dimension of a nested tensor is a symbol.
                shape = " x ".join(f"{size:,}" if type(size) is int else "ragged" for size in tensor.shape)
                self._largest_input = tensor.numel(), f"{shape} ({str(tensor.dtype).removeprefix('torch.')})"

    def _around_backward(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if not self.moments.forward_starts and not self._backward_depth:
            self.end_backward_step()
        self._backward_depth += 1
        if self._backward_depth > 1:  # a checkpoint that runs its own backward pass inside the outer one
            try:
                return original(*arguments, **keywords)
            finally:
                self._backward_depth -= 1
        index = self._journal.length() - 1
        self.moments.backward_starts.append(index)
        self.backward_lines.append((index, callers_line()))
        previous = self._enter(Phase.BACKWARD)
        try:
            result = original(*arguments, **keywords)
            self._has_passed_back = True
            self._note_results(arguments, result)
            return result
        finally:
            self._backward_depth -= 1
            self.moments.backward_ends.append(self._journal.length() - 1)
            self._note_gradients(list(self._parameters.values()))
            self._enter(previous)

    # `torch.autograd.grad` and `torch.func` return gradients instead of setting `grad`. A derivative by anything else
    # than a parameter, such as a gradient penalty's, is a part of the loss.
    def _note_results(self, arguments: tuple[Any, ...], result: Any) -> None:
        if not result:
            return
        inputs = arguments[_INPUTS]
        if not any(is_of_torch_func(one) for one in inputs):
            weights = set(addresses(list(self._parameters.values())))
            pairs = zip(inputs, result, strict=True)
            result = [gradient for one, gradient in pairs if not weights.isdisjoint(addresses([one]))]
        self._note(Role.GRADIENTS, result)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._note_parameters([parameter for parameter in parameters if id(parameter) not in self._parameters])
        # The script may have assigned gradients after the backward pass.
        self._note_gradients(parameters)
        if self._stepping is not None and self._stepping() is optimizer:  # its last step ended with an exception
            self._phases_before_optimizer.pop()
            self._enter(Phase.OTHER)
        self._stepping = weakref.ref(optimizer)
        self._phases_before_optimizer.append(self._enter(Phase.OPTIMIZER))

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        self._note(Role.OPTIMIZER_STATE, optimizer_tensors(optimizer))
        self._stepping = None
        if self._phases_before_optimizer:
            self._enter(self._phases_before_optimizer.pop())
        self._optimizer_steps += 1
        if not self.phases.is_in(NotedCall.CREATE_STATE):
            self._finish_optimizer(optimizer)

    def _finish_optimizer(self, optimizer: Any) -> None:
        # The first optimizer to finish counts the steps. If the script has deleted it, the next one takes its place.
        if self._first_optimizer is None or self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._first_optimizer() is optimizer:
            self._end_step()

    def _around_scaler_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: Any, *rest: Any, **keywords: Any
    ) -> Any:
        before = self._optimizer_steps
        result = original(scaler, optimizer, *rest, **keywords)
        if (
            self._optimizer_steps == before
        ):  # The scaler skipped the step because gradients were not finite; the step still counts.
            self._finish_optimizer(optimizer)
        return result

    def end_backward_step(self) -> None:
        """End the training step after a backward pass if the script has no optimizer."""
        if self._has_passed_back and not self.has_optimizer:
            self._has_passed_back = False
            self._end_step()

    def _around_optimizer_made(
        self, original: Callable[..., Any], optimizer: Any, *arguments: Any, **keywords: Any
    ) -> None:
        original(optimizer, *arguments, **keywords)
        if not self.has_optimizer and self.step_ends:
            self.step_ends.clear()
            self._on_recount()
        self.has_optimizer = True

    def _end_step(self) -> None:
        self.step_ends.append(self._journal.mark(len(self.step_ends) + 1))
        self._on_step(len(self.step_ends))

    # ---- owners of memory

    def _note(self, role: Role, tensors: Iterable[Any]) -> None:
        found = addresses(tensors)
        self._note_addresses.extend(found)
        self._note_indices.extend(array("q", [self._journal.length()]) * len(found))
        self._note_roles.extend(array("b", [_ROLES.index(role)]) * len(found))

    def _note_parameters(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        for parameter in parameters:
            if id(parameter) not in self._parameters:
                self._parameters[id(parameter)] = parameter
        self._note(Role.PARAMETERS, parameters)

    def _note_module(self, module: nn.Module) -> bool:
        # Repeat this at each step: parameters move when a model is cast or sharded, and buffers are replaced.
        step, known, is_trained = self._roots.get(id(module), (-1, None, False))
        if step == len(self.step_ends) and known is not None and known() is module:
            return is_trained
        if known is None or known() is not module:
            self._name_modules(module)
        owned = owned_by(module)
        is_trained = any(parameter.requires_grad for parameter in owned.parameters)
        self._roots[id(module)] = (len(self.step_ends), weakref.ref(module), is_trained)
        self._note_parameters(owned.parameters)
        self._note(Role.PARAMETERS, owned.parts_of_weights)
        self._note(Role.BUFFERS, owned.buffers)
        self._note_gradients(owned.parameters)
        return is_trained

    def _name_modules(self, root: nn.Module) -> None:
        for name, module in root.named_modules(prefix=type(root).__name__):
            if self._named.get(id(module)) is not module:
                self._named[id(module)] = module
                self._module_numbers[id(module)] = len(self.module_names)
                self.module_names.append(name)
                self._module_sizes.append(_elements_of(module))
                self._calls.append(0)
                self._calls_again.append(0)

    def _note_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        self._note(Role.GRADIENTS, [gradient for parameter in parameters for gradient in gradients_of(parameter)])

    def input_addresses(self) -> list[int]:
        """Return the address of each input tensor of a module."""
        number = _ROLES.index(Role.INPUTS)
        notes = zip(self._note_addresses, self._note_roles, strict=True)
        return [address for address, role in notes if role == number]

    def live_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return all optimizers that have made a step and that the script still has."""
        return list(self._optimizers.values())

    def trained_parameters(self) -> list[Any]:
        """Return the parameters of all live optimizers that have made a step."""
        return [one for each in self.live_optimizers() for group in each.param_groups for one in group["params"]]

    def owned_addresses(self) -> list[int]:
        """Return the addresses of parameters, gradients, and optimizer state."""
        parameters, optimizers = list(self._parameters.values()), self.live_optimizers()
        gradients = [gradient for parameter in parameters for gradient in gradients_of(parameter)]
        state = [tensor for optimizer in optimizers for tensor in optimizer_tensors(optimizer)]
        return addresses([*parameters, *gradients, *state])

    def note_everything(self) -> None:
        """Record the tensors of all live modules and optimizers."""
        things = gc.get_objects()
        # There may be half a million objects but only a few thousand types, and objects may define their own `==` and
        # `hash`.
        kinds = {id(kind): kind for kind in map(type, things)}
        wanted = {key for key, kind in kinds.items() if issubclass(kind, (nn.Module, torch.optim.Optimizer))}
        for thing in [thing for thing in things if id(type(thing)) in wanted]:
            if issubclass(type(thing), nn.Module):
                inside = object.__getattribute__(
                    thing, "__dict__"
                )  # The user's class may define its own attribute access.
                self._note_parameters(
                    [parameter for parameter in list(inside.get("_parameters", {}).values()) if parameter is not None]
                )
                self._note(Role.PARAMETERS, parts_of_weights(thing))
                self._note(Role.BUFFERS, list(inside.get("_buffers", {}).values()))
            elif "state" in object.__getattribute__(thing, "__dict__"):
                self._note(Role.OPTIMIZER_STATE, optimizer_tensors(thing))
        self._note_gradients(list(self._parameters.values()))

    # ---- errors and reads

    def _on_oom(self, device: int, size: int, total: int, free: int) -> None:
        # After torch.cuda.set_per_process_memory_fraction, `total` is the allowed memory instead of the GPU's memory.
        card = torch.cuda.get_device_properties(device).total_memory
        self.ooms.append(
            SeenOom(
                index=self._journal.length() - 1,
                device=device,
                asked_bytes=size,
                total_bytes=card,
                free_bytes=free,
                limit_bytes=total if total < card else None,
                line=callers_line(),
            )
        )
        self.note_everything()

    def _on_read(self, ops: str, size: int) -> None:
        if self.reads.is_answered:
            return
        names = ops.split(">") if ops else []
        shape_op = next((name for name in names if name in SHAPE_OPS), None)
        if shape_op is not None:
            kind = ReadKind.SHAPE
        elif "is_nonzero" in names or size == _TRUTH_BYTES:
            kind = ReadKind.BRANCH
        else:
            kind = ReadKind.NUMBER if size % _WHOLE_BYTES == 0 else ReadKind.FLOAT
        self.reads.note(kind, shape_op or (names[0] if names else "copy"), Certainty.UNKNOWN, size)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            return around(original, *arguments, **keywords)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original))


# A lazy parameter counts 0 until it is initialised.
def _elements_of(module: "nn.Module") -> int:
    own = (each for each in module._parameters.values() if each is not None)
    return sum(each.numel() for each in own if not torch.nn.parameter.is_lazy(each))
