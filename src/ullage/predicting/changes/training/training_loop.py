"""Call registered functions at the events of a training loop, such as the first forward pass."""

# A change registers a function for an event. The outermost call of a module in training mode with gradients begins a
# forward pass; the call of `backward` ends it. The hooks are plain wrappers around torch's functions, so that the
# script's calls and allocations stay the same.

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ullage.predicting.changes.training.known_names import users_frame
from ullage.predicting.changes.training.wrapping import wrap
from ullage.training.ownership.storage import is_of_torch_func

if TYPE_CHECKING:
    from ullage.gpu.tracing.journal import Entries
    from ullage.predicting.changes.training.facts import TrainingFacts

BeforeForward = Callable[[nn.Module, FrameType | None], None]
"""A function with two arguments: a module that is called, and the stack frame of the user's code that calls the
module.
"""
AroundStep = Callable[[Optimizer, Callable[[], Any]], Any]
"""A function that takes an optimizer and its `step` method, runs the step, and returns the result."""
AroundBlock = Callable[[nn.Module, tuple[Any, ...]], AbstractContextManager[Callable[[Any], None]]]
"""A function that takes a module and the positional arguments of its call, and returns a context manager.

The context manager yields a function that is called with the module's output.
"""
_CREATES_GRAPH = 3  # the index of create_graph among the arguments of autograd's engine


class TrainingLoop:
    """Calls registered functions at the events of a training loop. Call `install` once per process."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        """Maps each change, as `key=setting`, to the number of times that it had an effect."""
        self.refusals: dict[str, str] = {}
        """Maps each change that was not applied, as `key=setting`, to the reason."""
        self.gathered: Callable[[Entries], TrainingFacts] | None = None
        """A function that returns facts about training, or None if no facts are collected."""
        self.flops_now: Callable[[], int] | None = None
        """A function that returns the floating-point operations of the run so far, or None if they are not counted."""
        self.step_flops = 0
        """The floating-point operations of a step, or 0 if they are not counted."""
        self.before_first_forward: list[BeforeForward] = []
        """Functions that are called before the first forward pass of each trained module. They may change the
        module.
        """
        self.before_forward: list[BeforeForward] = []
        self.before_backward: list[Callable[[], None]] = []
        """Functions that are called before each backward pass, except nested ones."""
        self.backward_roots: list[Callable[[Any], Any]] = []
        """Functions that are called with the tensors of a `torch.autograd.backward` call. They return the tensors to
        use instead.
        """
        self.roots: Any = None
        """The tensor on which the script calls backward, or None if unknown."""
        self.after_backward: list[Callable[[], None]] = []
        self.optimizer_made: list[Callable[[Optimizer], None]] = []
        self.around_step: list[AroundStep] = []
        """Functions that run an optimizer's step. Register them before the script creates its first optimizer."""
        self.watched: dict[int, AroundBlock] = {}
        """Maps the `id` of a module to a function that returns a context manager around the module's call."""
        self.arguments: tuple[Any, ...] = ()
        """The arguments with which the script calls the module."""
        self._seen: dict[int, weakref.ref[nn.Module]] = {}
        self.is_forward = False
        """Whether a forward pass in training mode is running."""
        self._is_backward = False
        self._stepping: set[int] = set()
        self._main_thread = threading.get_ident()

    @property
    def torch(self) -> ModuleType:
        """The torch module of the script."""
        return torch

    def install(self) -> None:
        """Wrap the torch functions that call modules, run the backward pass and create optimizers."""
        self._wrap_calls()
        for owner in (torch.autograd, torch.autograd.graph):
            wrap(owner, "_engine_run_backward", self._around_engine)
        wrap(torch.autograd, "backward", self._around_backward)
        wrap(Optimizer, "__init__", self._around_init)

    def _around_init(self, made: Callable[..., Any], optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
        made(optimizer, *arguments, **keywords)
        if self.around_step:
            self._wrap_step(type(optimizer))
        for call in self.optimizer_made:
            call(optimizer)

    def _wrap_calls(self) -> None:
        original = nn.Module.__call__
        is_compiling, watched = torch.compiler.is_compiling, self.watched

        @functools.wraps(original)
        def call(module: nn.Module, /, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(module, *arguments, **keywords)
            if self.is_forward and id(module) in watched and threading.get_ident() == self._main_thread:
                with watched[id(module)](module, arguments) as tell:
                    output = original(module, *arguments, **keywords)
                    tell(output)
                return output
            if self.is_forward or self._is_backward or not self._is_training(module):
                return original(module, *arguments, **keywords)
            self.arguments = (arguments, keywords)
            self._before_forward(module)
            self.arguments = ()
            self.is_forward = True
            try:
                return original(module, *arguments, **keywords)
            finally:
                self.is_forward = False

        nn.Module.__call__ = call  # type: ignore[method-assign]

    # A loss does not begin a forward pass: the module must have parameters.
    def _is_training(self, module: nn.Module) -> bool:
        return (
            module.training
            and torch.is_grad_enabled()
            and threading.get_ident() == self._main_thread
            and any(parameter.requires_grad for parameter in module.parameters())
        )

    def _before_forward(self, module: nn.Module) -> None:
        frame = users_frame()
        known = self._seen.get(id(module))
        if known is None or known() is not module:
            self._seen[id(module)] = weakref.ref(module)
            for call in self.before_first_forward:
                call(module, frame)
        for call in self.before_forward:
            call(module, frame)

    def _around_backward(self, original: Callable[..., Any], tensors: Any, *arguments: Any, **keywords: Any) -> Any:

        def run() -> Any:
            roots = tensors
            for call in self.backward_roots:
                roots = call(roots)
            return original(roots, *arguments, **keywords)

        if not self._is_outermost():
            return original(tensors, *arguments, **keywords)
        self.roots = tensors
        return self._in_backward(run)

    def _around_engine(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        def run() -> Any:
            return original(*arguments, **keywords)

        if not self._is_outermost():
            return run()
        is_derived_further = len(arguments) > _CREATES_GRAPH and arguments[_CREATES_GRAPH]  # a gradient penalty
        # `torch.func.grad` always keeps the graph. The outermost transform is the backward pass.
        if is_derived_further and any(is_of_torch_func(output) for output in arguments[0]):
            is_derived_further = _running_gradients() > 1
        return self._in_backward(run, is_part_of_forward=is_derived_further)

    def _is_outermost(self) -> bool:
        # Derivatives that a model computes inside its forward pass (forces of an energy, a penalty) belong to the
        # forward pass.
        return not (self._is_backward or self.is_forward) and threading.get_ident() == self._main_thread

    def _in_backward(self, run: Callable[[], Any], *, is_part_of_forward: bool = False) -> Any:
        for call in () if is_part_of_forward else self.before_backward:
            call()
        self.roots = None
        self._is_backward = True
        try:
            return run()
        finally:
            self._is_backward = False
            for call in () if is_part_of_forward else self.after_backward:
                call()

    # Learning rate schedulers wrap `step` on the optimizer object, so this wraps it on the class.
    def _wrap_step(self, kind: type[Optimizer]) -> None:
        if not hasattr(kind.step, "ullage_is_around"):
            wrap(kind, "step", self._around_step)
            setattr(kind.step, "ullage_is_around", True)  # noqa: B010  a mark of ours on a function

    def _around_step(self, original: Callable[..., Any], optimizer: Optimizer, *given: Any, **keywords: Any) -> Any:
        take: Callable[[], Any] = functools.partial(original, optimizer, *given, **keywords)
        if id(optimizer) in self._stepping:  # by a call around this one
            return take()
        self._stepping.add(id(optimizer))
        try:
            for around in self.around_step:
                take = functools.partial(around, optimizer, take)
            return take()
        finally:
            self._stepping.discard(id(optimizer))


# The number of nested `torch.func` transforms that compute gradients (torch._functorch.pyfunctorch, torch 2.6 to 2.15).
def _running_gradients() -> int:
    functorch = torch._C._functorch
    stack = functorch.get_interpreter_stack() or []
    return sum(each.key() == functorch.TransformType.Grad for each in stack)
