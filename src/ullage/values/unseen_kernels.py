"""Kernels that no operator launches: Triton's, of a script's own and of torch.compile's graphs.

What they write is not known. Which of its arguments a kernel writes cannot be told cheaply, so that all count as
written; but not whole numbers that came from the host as they are: indices, lengths and masks, which kernels read.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from ullage.tracing.torch_import import ImportWatch

_LAUNCHERS: Final = (
    ("triton.runtime.jit", "JITFunction"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
)


class UnseenKernels:
    """Tells `written` each tensor that a kernel of Triton's is launched with, from `watch` on."""

    def __init__(self, written: Callable[[torch.Tensor], None]) -> None:
        self._written = written
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Watch the launchers that are there, and those that are imported later."""
        for module, name in _LAUNCHERS:
            if module in sys.modules:
                self._wrap(name, sys.modules[module])
            else:
                ImportWatch(module, before=lambda: None, after=partial(self._wrap, name)).install()

    def stop(self) -> None:
        """Watch no more."""
        for undo in self._undo:
            undo()
        self._undo = []

    def _wrap(self, name: str, module: Any) -> None:
        launcher = getattr(module, name, None)
        original = getattr(launcher, "run", None)
        if launcher is None or original is None:
            return
        written = self._written

        def run(this: Any, *arguments: Any, **keywords: Any) -> Any:
            result = original(this, *arguments, **keywords)
            for argument in (*arguments, *keywords.values()):
                if isinstance(argument, torch.Tensor) and argument.is_cuda:
                    written(argument)
            return result

        launcher.run = run
        self._undo.append(lambda: setattr(launcher, "run", original))
