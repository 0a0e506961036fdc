"""Kernels that no operator launches: Triton's, of a script's own and of torch.compile's graphs.

What they write is not known. Which of its arguments a kernel of a script's writes cannot be told, so that all count as
written; Inductor names those that its own kernels only read.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from ullage.gpu.tracing.torch_import import ImportWatch

_LAUNCHERS: Final = (
    ("triton.runtime.jit", "JITFunction"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"),
)
_GENERATED: Final = frozenset(("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN"))
"""The kinds of kernels that Inductor writes itself."""


def watch_kernels(
    written: Callable[[torch.Tensor], None],
    used: Callable[[torch.Tensor], None] | None,
    stand_in: Callable[..., None],
) -> None:
    """Watch the launchers that are there, and those that are imported later.

    Args:
        written: told each tensor that a kernel of Triton's may write.
        used: told all tensors that a kernel is given.
        stand_in: puts a function in the place of an owner's, by its name.
    """

    def wrap(name: str, module: Any) -> None:
        launcher = getattr(module, name, None)
        original = getattr(launcher, "run", None)
        if original is None:
            return

        def run(this: Any, *arguments: Any, **keywords: Any) -> Any:
            if used is not None:
                for argument in (*arguments, *keywords.values()):
                    if isinstance(argument, torch.Tensor):
                        used(argument)
            result = original(this, *arguments, **keywords)
            reads_only = _read_only(this)
            for place, argument in enumerate((*arguments, *keywords.values())):
                if place not in reads_only and isinstance(argument, torch.Tensor) and argument.is_cuda:
                    written(argument)
            return result

        stand_in(launcher, run=run)

    for module, name in _LAUNCHERS:
        if module in sys.modules:
            wrap(name, sys.modules[module])
        else:
            ImportWatch(module, before=lambda: None, after=partial(wrap, name)).install()


def _read_only(launcher: Any) -> frozenset[int]:
    """Return the places of arguments that a kernel only reads, as far as it is known: those of Inductor's own.

    What a kernel of Inductor's writes is named `out_ptr` and `in_out_ptr` (`KernelArgs` in torch/_inductor/codegen);
    kernels of the script's within a graph have names of their own, and so have templates.
    """
    kind = getattr(getattr(launcher, "heuristic_type", None), "name", "")
    if kind not in _GENERATED or getattr(launcher, "custom_kernel", False):
        return frozenset()
    names = getattr(getattr(launcher, "fn", None), "arg_names", ())
    return frozenset(place for place, name in enumerate(names) if name.startswith("in_ptr"))
