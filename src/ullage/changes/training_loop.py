"""The moments of a training loop, for the changes that are made in it: in the script's process, with torch imported.

A change registers what it wants to do at a moment. The outermost call of a module in training, with gradients, begins a
forward pass; the call of autograd's engine ends it. The hooks are plain wrappers of torch's own functions, so that the
script's calls and what they allocate stay as they are.
"""

import functools
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from ullage.tracing.source import is_users

BeforeForward = Callable[[nn.Module, FrameType | None], None]
"""Called with the module, and the frame of the user's that calls it."""


class TrainingLoop:
    """Calls what changes have registered. `install` wraps torch's functions; a process does so once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        """Tells the user a sentence."""
        self.effects: Counter[str] = Counter()
        """The number of times that a change had an effect, by its `key=setting`; one that is not there had none."""
        self.refusals: dict[str, str] = {}
        """Why a change was not made, by its `key=setting`."""
        self.before_first_forward: list[BeforeForward] = []
        """Before the first forward pass of each module that is trained; it may change the module."""
        self.before_forward: list[BeforeForward] = []
        self.before_backward: list[Callable[[], None]] = []
        """Before the outermost backward pass, whoever asks for it."""
        self.after_backward: list[Callable[[], None]] = []
        self.optimizer_made: list[Callable[[torch.optim.Optimizer], None]] = []
        self._seen: set[int] = set()
        self._keeps: list[nn.Module] = []  # whose number nobody else may get
        self._is_forward = self._is_backward = False
        self._main_thread = threading.get_ident()

    @property
    def torch(self) -> ModuleType:
        """The script's torch."""
        return torch

    def install(self) -> None:
        """Wrap what calls modules, runs backward and makes optimizers."""
        self._wrap_calls()
        for owner in (torch.autograd, torch.autograd.graph):
            original = getattr(owner, "_engine_run_backward")  # noqa: B009  torch's types leave it out
            setattr(owner, "_engine_run_backward", functools.partial(self._around_backward, original))  # noqa: B010
        made = torch.optim.Optimizer.__init__

        @functools.wraps(made)
        def init(optimizer: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> None:
            made(optimizer, *arguments, **keywords)
            for call in self.optimizer_made:
                call(optimizer)

        setattr(torch.optim.Optimizer, "__init__", init)  # noqa: B010  mypy is right otherwise

    def _wrap_calls(self) -> None:
        original = nn.Module.__call__
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def call(module: nn.Module, /, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or self._is_forward or self._is_backward or not self._is_training(module):
                return original(module, *arguments, **keywords)
            self._before_forward(module)
            self._is_forward = True
            try:
                return original(module, *arguments, **keywords)
            finally:
                self._is_forward = False

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
        if id(module) not in self._seen:
            self._seen.add(id(module))
            self._keeps.append(module)
            for call in self.before_first_forward:
                call(module, frame)
        for call in self.before_forward:
            call(module, frame)

    def _around_backward(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self._is_backward or threading.get_ident() != self._main_thread:
            return original(*arguments, **keywords)
        for call in self.before_backward:
            call()
        self._is_backward = True
        try:
            return original(*arguments, **keywords)
        finally:
            self._is_backward = False
            for call in self.after_backward:
                call()


def users_frame() -> FrameType | None:
    """Return the innermost frame of the user's own code that is running."""
    import sys

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
