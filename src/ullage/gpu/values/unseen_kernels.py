"""Watch Triton kernels of scripts and of torch.compile, which are launched without an operator.

The values that they write are unknown. All arguments of a script's own kernel count as written. For Inductor's kernels,
the argument names show which arguments are only read.
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
# kinds of Triton kernels that Inductor generates itself
_GENERATED: Final = frozenset(("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN"))


def watch_kernels(
    written: Callable[[torch.Tensor], None],
    used: Callable[[torch.Tensor], None] | None,
    stand_in: Callable[..., None],
) -> None:
    """Wrap the functions that launch Triton kernels, in modules that are imported now or later.

    Args:
        written: a function that is called with each tensor that a Triton kernel may write.
        used: a function that is called with all tensor arguments of a kernel.
        stand_in: a function that replaces an attribute of an object, by name.
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


# Inductor names written arguments `out_ptr` and `in_out_ptr` (`KernelArgs` in torch/_inductor/codegen). The script's
# own kernels inside a graph, and templates, have other names.
def _read_only(launcher: Any) -> frozenset[int]:
    kind = getattr(getattr(launcher, "heuristic_type", None), "name", "")
    if kind not in _GENERATED or getattr(launcher, "custom_kernel", False):
        return frozenset()
    names = getattr(getattr(launcher, "fn", None), "arg_names", ())
    return frozenset(place for place, name in enumerate(names) if name.startswith("in_ptr"))
