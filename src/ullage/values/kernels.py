"""Kernels for a dispatch key of its own, through which every operator is seen before it runs.

Each operator has one: what is called with a subclass of Tensor, or under a mode of the script's, finds no fallback
(`python_op_registration_trampoline_impl` in torch/csrc/utils/python_dispatch.cpp). The fallback is for operators that are
defined later.
"""

from collections.abc import Callable
from typing import Any

import torch

from ullage.values.content import INTERCEPTION_KEY


class Kernels:
    """The kernels of one observer; they last as long as this object."""

    def __init__(self, see: Callable[..., Any], passes: Callable[[str], bool]) -> None:
        self._see = see
        """Called with the keys, the operator and its arguments."""
        self._passes = passes
        """Whether the dispatcher is to pass an operator by, without Python."""
        self._libraries: dict[str, Any] = {}
        self._registered: set[str] = set()

    def install(self) -> None:
        """Register all. PyTorch asks them in threads where the key is included alone."""
        self.see_new_operators()
        whole = torch.library.Library("_", "IMPL")
        whole.fallback(self._see, INTERCEPTION_KEY, with_keyset=True)
        self._libraries["_"] = whole

    def see_new_operators(self) -> None:
        """Register a kernel for the operators that have none yet."""
        for name in torch._C._dispatch_get_all_op_names():
            if name in self._registered:
                continue
            self._registered.add(name)
            namespace, _, short = name.partition("::")
            library = self._libraries.get(namespace)
            if library is None:
                library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
            kernel = torch.library.fallthrough_kernel if self._passes(name) else self._kernel_of(name)
            library.m.impl(short, INTERCEPTION_KEY, kernel, True)

    def _kernel_of(self, name: str) -> Callable[..., Any]:
        see = self._see
        operator: Any = None

        def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal operator
            if operator is None:
                operator = _operator_of(name)
            return see(keyset, operator, *arguments, **keywords)

        return kernel


def _operator_of(name: str) -> Any:
    """Return the operator of a name as the dispatcher knows it ("aten::add.Tensor")."""
    base, _, overload = name.partition(".")
    namespace, _, short = base.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
