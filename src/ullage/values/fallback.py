"""How operators are seen: a fallback for a dispatch key of their own, below autograd and above the kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ullage.values.content import INTERCEPTION_KEY
from ullage.values.operator_plan import OperatorPlan, overloads_to_pass

_KEY: Final[Any] = torch._C._parse_dispatch_key(INTERCEPTION_KEY)
_BELOW: Final = torch._C._dispatch_keyset_full_after(_KEY)
ONLY: Final = torch._C.DispatchKeySet(_KEY)
NUMBERS: Final = frozenset((int, float, bool, complex))


def register(see: Callable[..., Any], *, everything: bool) -> list[Any]:
    """Have a function see operators, for as long as what is returned lives, in threads where the key is included.

    Args:
        see: it is called with the keys, the operator, and its arguments.
        everything: whether products and convolutions are seen, too.
    """
    aten = torch.library.Library("aten", "IMPL")
    profiler = torch.library.Library("profiler", "IMPL")
    for name in overloads_to_pass(everything=everything):
        namespace, _, short = name.partition("::")
        if namespace in ("aten", "profiler"):
            library = aten if namespace == "aten" else profiler
            library.impl(short, torch.library.fallthrough_kernel, INTERCEPTION_KEY)
    whole = torch.library.Library("_", "IMPL")
    whole.fallback(see, INTERCEPTION_KEY, with_keyset=True)
    return [aten, profiler, whole]


def include(*, on: bool = True) -> None:
    """See what the calling thread does, and what autograd does for it; or no longer."""
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, on)


def run_on(
    keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Run the operator as it would have run."""
    for place in plan.number_places:
        # a number that PyTorch has wrapped in a tensor arrives as a number, which only a call from the top takes
        if place < len(arguments) and arguments[place].__class__ in NUMBERS:
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                return plan.with_number[place](*arguments, **keywords)
    if plan.runs_alone:
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            return operator.redispatch(keyset & _BELOW, *arguments, **keywords)
    return operator.redispatch(keyset & _BELOW, *arguments, **keywords)
