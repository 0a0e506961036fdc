"""The moments of a training loop, for the changes that are made in it: in the script's process, with torch imported.

A change registers what it wants to do at a moment. The outermost call of a module in training, with gradients, begins a
forward pass; the call of `backward` ends it. The hooks are plain wrappers of torch's own functions, so that the
script's calls and what they allocate stay as they are.
"""

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

if TYPE_CHECKING:
    from ullage.gpu.tracing.journal import Entries
    from ullage.predicting.changes.training.facts import TrainingFacts

BeforeForward = Callable[[nn.Module, FrameType | None], None]
"""Called with the module, and the frame of the user's that calls it."""
AroundStep = Callable[[Optimizer, Callable[[], Any]], Any]
"""Called with the optimizer, and what takes its step; returns what the step returns."""
_CREATES_GRAPH = 3  # the place of create_graph among the arguments of autograd's engine


class TrainingLoop:
    """Calls what changes have registered. `install` wraps torch's functions; a process does so once."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        """The number of times that a change had an effect, by its `key=setting`; one that is not there had none."""
        self.refusals: dict[str, str] = {}
        """Why a change was not made, by its `key=setting`."""
        self.gathered: Callable[[Entries], TrainingFacts] | None = None
        """Says how the run trains, from the journal's entries, where that is gathered."""
        self.flops_now: Callable[[], int] | None = None
        """Says how many floating-point operations have run so far, where they are counted."""
        self.step_flops = 0
        """The floating-point operations of a step, where they are counted."""
        self.before_first_forward: list[BeforeForward] = []
        """Before the first forward pass of each module that is trained; it may change the module."""
        self.before_forward: list[BeforeForward] = []
        self.before_backward: list[Callable[[], None]] = []
        """Before the outermost backward pass, whoever asks for it."""
        self.backward_roots: list[Callable[[Any], Any]] = []
        """Given what `torch.autograd.backward` begins at, and returning what it begins at instead."""
        self.roots: Any = None
        """The tensor that the script's backward pass begins at, in `before_backward`; None where unknown."""
        self.after_backward: list[Callable[[], None]] = []
        self.optimizer_made: list[Callable[[Optimizer], None]] = []
        self.around_step: list[AroundStep] = []
        """Around the step of an optimizer, where that is known before the first optimizer is made."""
        self.watched: dict[int, Callable[[nn.Module], AbstractContextManager[Callable[[Any], None]]]] = {}
        """Around a module's call inside a forward pass, by the module's `id`: it enters what the function returns, and
        calls what that gives with the module's output."""
        self.arguments: tuple[Any, ...] = ()
        """The arguments of the module that is called, while `before_first_forward` and `before_forward` are called."""
        self._seen: dict[int, weakref.ref[nn.Module]] = {}
        self.is_forward = False
        """Whether a forward pass of training runs."""
        self._is_backward = False
        self._stepping: set[int] = set()
        self._main_thread = threading.get_ident()

    @property
    def torch(self) -> ModuleType:
        """The script's torch."""
        return torch

    def install(self) -> None:
        """Wrap what calls modules, runs backward and makes optimizers."""
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
                with watched[id(module)](module) as tell:
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

    def _is_training(self, module: nn.Module) -> bool:
        """Tell whether a call of a module begins a forward pass that trains: a loss function has no parameters."""
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
        """Run a backward pass that a script asks for: before PyTorch makes the gradient that it begins with."""

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
        is_derived_further = len(arguments) > _CREATES_GRAPH and arguments[_CREATES_GRAPH]  # a penalty on a gradient
        return self._in_backward(run, is_part_of_forward=is_derived_further)

    def _is_outermost(self) -> bool:
        # What a model derives inside its own forward pass (forces of an energy, a penalty) is part of that.
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

    def _wrap_step(self, kind: type[Optimizer]) -> None:
        """Wrap the step of a class of optimizers: schedulers put theirs around an instance's."""
        if not hasattr(kind.step, "ullage_is_around"):
            wrap(kind, "step", self._around_step)
            setattr(kind.step, "ullage_is_around", True)  # noqa: B010  a mark of ours on a function

    def _around_step(self, original: Callable[..., Any], optimizer: Optimizer, *given: Any, **keywords: Any) -> Any:
        take: Callable[[], Any] = functools.partial(original, optimizer, *given, **keywords)
        if id(optimizer) in self._stepping:  # by a call around it
            return take()
        self._stepping.add(id(optimizer))
        try:
            for around in self.around_step:
                take = functools.partial(around, optimizer, take)
            return take()
        finally:
            self._stepping.discard(id(optimizer))
