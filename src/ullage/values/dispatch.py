"""A kernel of ours for every operator, at a dispatch key of our own below autograd, and the operator's own way on.

What is seen runs on as it would have: the allocator's sequence stays PyTorch's, byte for byte. (Under a
`TorchDispatchMode` autograd takes tensors for subclasses and no longer adds gradients in place:
`isTensorSubclassLike` in ATen/TensorSubclassLikeUtils.h.)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ullage.values.content import INTERCEPTION_KEY
from ullage.values.operator_plan import NUMBERS, OperatorPlan, overload_of, passes

_KEY: Final[Any] = torch._C._parse_dispatch_key(INTERCEPTION_KEY)
_BELOW: Final = torch._C._dispatch_keyset_full_after(_KEY)
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
ONLY: Final = torch._C.DispatchKeySet(_KEY)
"""The set of our key alone, to be shut out."""
PYTHON: Final = torch._C.DispatchKey.Python
"""The key of subclasses and modes."""


class Watch(ABC):
    """Sees every operator from `install` on, in every thread that `include` is called in."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._libraries: dict[str, Any] = {}
        self._registered: set[str] = set()

    @abstractmethod
    def see(self, keyset: Any, operator: Any, *arguments: Any, **keywords: Any) -> Any:
        """Run an operator on, by `run_on`, and return what it returns."""

    def install(self) -> None:
        """Register a kernel for every operator. PyTorch asks it in threads where the key is included alone.

        What is called with a subclass of Tensor, or under a mode of the script's, finds only a kernel that the operator
        has itself: the fallback is for operators that are defined later.
        """
        self.see_new_operators()
        whole = torch.library.Library("_", "IMPL")
        whole.fallback(self.see, INTERCEPTION_KEY, with_keyset=True)
        self._libraries["_"] = whole

    def see_new_operators(self) -> None:
        """Register a kernel for the operators that have none yet."""
        everything = self._everything
        for name in torch._C._dispatch_get_all_op_names():
            if name in self._registered:
                continue
            self._registered.add(name)
            namespace, _, short = name.partition("::")
            library = self._libraries.get(namespace)
            if library is None:
                library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
            if passes(name, everything=everything):
                kernel = torch.library.fallthrough_kernel
            else:
                kernel = self._kernel_of(name)
            library.m.impl(short, INTERCEPTION_KEY, kernel, True)

    def _kernel_of(self, name: str) -> Callable[..., Any]:
        see = self.see
        operator: Any = None

        def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal operator
            if operator is None:
                operator = overload_of(name)
            return see(keyset, operator, *arguments, **keywords)

        return kernel

    def include(self, *, on: bool = True) -> None:
        """See what the calling thread does, and what autograd does for it; or no longer."""
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, on)


def run_on(
    keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Run the operator as it would have run."""
    for place in plan.number_places:
        # a number that PyTorch has wrapped in a tensor arrives as a number, which only a call from the top takes
        if place < len(arguments) and arguments[place].__class__ in NUMBERS:
            if keyset.has(PYTHON):
                return _to_python(plan.with_numbers, arguments, keywords)
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                return plan.with_numbers(*arguments, **keywords)
    return operator.redispatch(keyset & _BELOW, *arguments, **keywords)


def _to_python(operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Give an operator to the script's mode, or to the subclasses among its arguments, as PyTorch would.

    What they do is to be seen: our key cannot be shut out meanwhile.
    """
    flat = [each for argument in (*arguments, *keywords.values()) for each in _flat(argument)]
    kinds = list({type(each): None for each in flat if hasattr(type(each), "__torch_dispatch__")})
    kinds = [kind for kind in kinds if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl]
    if torch._C._len_torch_dispatch_stack():
        with torch.utils._python_dispatch._pop_mode_temporarily() as mode:
            return mode.__torch_dispatch__(operator, tuple(kinds), tuple(arguments), dict(keywords))
    kinds.sort(key=lambda kind: -len(kind.__mro__))
    for kind in kinds:
        if kind in _PLAIN:
            continue
        result = kind.__torch_dispatch__(operator, tuple(kinds), tuple(arguments), dict(keywords))
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{operator}' on types that implement __torch_dispatch__: {kinds}")


def _flat(argument: Any) -> Sequence[Any]:
    return argument if isinstance(argument, list | tuple) else (argument,)
