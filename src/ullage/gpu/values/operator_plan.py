"""What an operator's schema says that matters for values, looked up once an operator; which products are small."""

import math
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch

NUMBERS: Final = frozenset((int, float, bool, complex))

_PASSED: Final = frozenset(
    (
        # views and shapes: the content is the storage's
        *("aten::view", "aten::_unsafe_view", "aten::as_strided", "aten::alias", "aten::detach", "aten::expand"),
        *("aten::slice", "aten::select", "aten::unsqueeze", "aten::squeeze", "aten::permute", "aten::t"),
        *("aten::transpose", "aten::split", "aten::split_with_sizes", "aten::diagonal", "aten::unfold"),
        *("aten::_reshape_alias", "aten::view_as_real", "aten::view_as_complex", "aten::unsqueeze_", "aten::squeeze_"),
        *("aten::transpose_", "aten::t_", "aten::as_strided_", "aten::detach_", "aten::movedim", "aten::real"),
        *("aten::imag", "aten::lift", "aten::narrow", "aten::_conj"),
        # memory without values
        *("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"),
        *("aten::new_empty_strided", "aten::empty_permuted", "aten::set_", "aten::record_stream", "aten::resize_as_"),
        *("aten::is_same_size", "aten::result_type", "aten::_has_same_storage_numel", "aten::sym_size"),
        *("aten::is_pinned", "aten::_pin_memory", "aten::pin_memory", "aten::retain_grad", "aten::rename_"),
        *("aten::requires_grad_", "aten::_version", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"),
    )
)
"""Operators that nothing is to be known of: the dispatcher passes by without Python."""
HEAVY: Final = frozenset(
    (
        *("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::dot", "aten::mv", "aten::addmv"),
        *("aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::convolution_backward"),
        *("aten::cudnn_convolution_transpose", "aten::cudnn_convolution_relu", "aten::_cudnn_rnn"),
        *("aten::_cudnn_rnn_backward", "aten::_scaled_mm", "aten::_grouped_mm", "aten::_scaled_grouped_mm"),
        *("aten::_scaled_dot_product_efficient_attention", "aten::_efficient_attention_forward"),
        *("aten::_scaled_dot_product_efficient_attention_backward", "aten::_efficient_attention_backward"),
        *("aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward"),
        *("aten::_scaled_dot_product_flash_attention_backward", "aten::_flash_attention_backward"),
        *("aten::_scaled_dot_product_cudnn_attention", "aten::_cudnn_attention_forward"),
        *("aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward"),
    )
)
"""Products and convolutions: the dispatcher passes by unless everything is computed, or they may be small products."""
# Small products and convolutions are worked out when they are asked for, from what went in: results hang together then.
# The rows of a product are as large as the rows that it is made of, its columns as alike as the weights' are, and what
# a convolution makes of overlapping windows is alike. So the score of a graph's node goes with how many neighbours it
# has, a token is more like itself than like others, and a heat map has fewer peaks than noise. A product of numbers
# that are drawn one by one has none of that. What goes in is known or drawn; what comes out always counts as drawn, as
# the card rounds in another way.
_CONVOLUTION: Final = "aten::cudnn_convolution"
_FACTORS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", _CONVOLUTION), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), (1, 2)),
}
"""Places of the two factors among an operator's arguments."""
PRODUCTS: Final = frozenset(_FACTORS)
"""Operators that may be worked out."""
MULTIPLICATIONS: Final = 1 << 27
"""A product with more is drawn: it would take the host more than some ten milliseconds."""
NARROW: Final = frozenset((torch.float16, torch.bfloat16))
"""Floats that a CPU is slow with."""

_NEVER_SEEN: Final = (_PASSED | HEAVY) - PRODUCTS
_LEAVES: Final = frozenset(("aten::copy_", "aten::lift_fresh", "aten::_euclidean_dist"))
"""Operators that are looked at themselves, although they have no kernel of CUDA's own. Distances are run whole on the
host: by way of a product of matrices, which is drawn, they would be the roots of negative numbers."""
_READ_FOR_SUBCLASSES: Final = frozenset(
    ("aten::unbind", "aten::chunk", "aten::clone", "aten::select", "aten::matmul", "aten::contiguous")
)
"""Operators for which a nested tensor reads its offsets: what PyTorch does for a subclass is seen only if the operator
is (torch/nested/_internal/ops.py)."""
_CLOSED: Final = frozenset(
    (
        *("aten::pow.Scalar", "aten::pow.Scalar_out", "aten::isin.Scalar_Tensor", "aten::isin.Scalar_Tensor_out"),
        *("aten::bucketize.Scalar", "aten::searchsorted.Scalar"),
    )
)
"""Operators that wrap a number in a tensor on the card, which PyTorch cannot hand to Python (`toPyObject` in
torch/csrc/jit/python/pybind_utils.cpp): what they are made of is not to be seen."""
_NAMESPACES_WITHOUT_VALUES: Final = ("profiler", "prim", "prims", "inductor", "quantized", "_quantized", "rngprims")

_NAMESPACES_OF_PYTORCH: Final = frozenset(
    (
        *("aten", "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "torchvision", "rngprims"),
        *("profiler", "prim", "prims", "inductor", "quantized", "_quantized", "higher_order", "debugprims", "fsdp"),
        *("quantized_decomposed", "sparse", "xnnpack", "prepacked", "mkldnn", "mkl", "onednn", "mkldnn_prepacked"),
    )
)
"""Namespaces whose operators PyTorch tests on the CPU and on a card alike."""


def argument_at(place: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the argument at one of the places of `OperatorPlan.written`; None where it was left out."""
    return arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)


class OperatorPlan:
    """What is to be done when one operator is called."""

    __slots__ = (
        *("has_lists_only", "is_collective", "is_composite", "is_random", "name", "number_places"),
        *("operator", "_with_numbers", "is_closed", "is_foreign", "written"),
    )

    def __init__(self, operator: Any) -> None:
        schema = operator._schema
        self.name: str = schema.name
        places = [(str(number), each) for number, each in enumerate(schema.arguments) if not each.kwarg_only]
        places += [(each.name, each) for each in schema.arguments if each.kwarg_only]
        self.number_places = [int(place) for place, each in places if place.isdigit() and str(each.type) == "Tensor"]
        """Places of arguments that are tensors, where a wrapped number arrives as a number."""
        self.is_closed = operator.name() in _CLOSED
        """Whether what it is made of must not be seen."""
        self._with_numbers: dict[tuple[int, ...], Any] = {}
        self.written = [place for place, each in places if each.alias_info is not None and each.alias_info.is_write]
        """Arguments that the operator writes: their place, or their name if they have none."""
        self.is_random = torch.Tag.nondeterministic_seeded in operator.tags
        returns_views = bool(schema.returns) and all(
            each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
        )
        self.operator = operator
        self.is_composite = (is_composite(operator.name()) or returns_views) and self.name not in _LEAVES
        """Whether it is made of other operators, each of which is seen itself, or returns a view."""
        self.has_lists_only = self.name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach"))
        """Whether it is an operation on all of an optimizer's tensors at once."""
        self.is_foreign = is_foreign(self.name)
        """Whether a script or a library has defined it: its CPU kernel is taken to do what its CUDA kernel does."""
        self.is_collective = self.name.startswith(("c10d::", "_c10d_functional::", "symm_mem::"))

    def for_host(self, operator: Any, arguments: Sequence[Any]) -> Any:
        """Return the overload that takes these arguments, called from the top."""
        places = self.numbers_in(arguments)
        return self.with_numbers(operator, places) or operator if places else operator

    def numbers_in(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return where a number stands for a tensor: PyTorch has wrapped it in one."""
        return tuple(
            place for place in self.number_places if place < len(arguments) and arguments[place].__class__ in NUMBERS
        )

    def with_numbers(self, operator: Any, places: tuple[int, ...]) -> Any:
        """Return what takes numbers at these places: the operator, if PyTorch allows it, or an overload; else None."""
        if places not in self._with_numbers:
            self._with_numbers[places] = _with_numbers(operator, places)
        return self._with_numbers[places]


plan_of: Final = cache(OperatorPlan)
"""The function that returns an operator's plan, made once."""


def _with_numbers(operator: Any, places: tuple[int, ...]) -> Any:
    """Return what takes numbers at places where an operator has tensors: itself, if PyTorch allows it, or another."""
    base = operator._schema.name.partition("::")[2]
    if torch._C._should_allow_numbers_as_tensors(base.rstrip("_")) or torch._C._should_allow_numbers_as_tensors(base):
        return operator
    wanted = _types(operator)
    for place in places:
        wanted[place] = (wanted[place][0], "number")
    packet = operator._overloadpacket
    found = (getattr(packet, name) for name in packet.overloads())
    return next((each for each in found if [kind for _, kind in _types(each)] == [kind for _, kind in wanted]), None)


def _types(operator: Any) -> list[tuple[str, str]]:
    return [(each.name, f"{each.name if each.kwarg_only else ''}{each.type}") for each in operator._schema.arguments]


def is_foreign(name: str) -> bool:
    """Tell whether an operator ("torch_scatter::segment_sum") is of a script's or a library's own."""
    return name.partition("::")[0] not in _NAMESPACES_OF_PYTORCH


def composites() -> frozenset[str]:
    """Return the names of all operators that are made of others; asked one by one, it takes ten times as long."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key
    made = {*names("CompositeImplicitAutograd"), *names("CompositeExplicitAutograd")}
    return frozenset(made.difference(names("CUDA"), _CLOSED))


def passes(name: str, made_of_others: Container[str], *, everything: bool) -> bool:
    """Tell whether the dispatcher is to pass an operator ("aten::empty.memory_format") by, without Python."""
    base, _, overload = name.partition(".")
    if base in _READ_FOR_SUBCLASSES:
        return False
    if base in (_PASSED if everything else _NEVER_SEEN):
        return overload not in ("out", "out_t")
    return base.partition("::")[0] in _NAMESPACES_WITHOUT_VALUES or (name in made_of_others and base not in _LEAVES)


def is_composite(name: str) -> bool:
    """Tell whether an operator is made of others, each of which is seen itself."""
    if name in _CLOSED:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(
        (has(name, "CompositeImplicitAutograd") or has(name, "CompositeExplicitAutograd")) and not has(name, "CUDA")
    )


def is_small(name: str, arguments: Sequence[Any], result: torch.Tensor, most_bytes: int) -> bool:
    """Tell whether a product is worked out: of floats that are all kept, and with few multiplications."""
    first, second = (arguments[place] for place in _FACTORS[name])
    if not result.dtype.is_floating_point:
        return False
    if any(math.prod(each.size()) * each.dtype.itemsize > most_bytes for each in (result, first, second)):
        return False
    each = second.numel() // max(second.size(0), 1) if name == _CONVOLUTION else int(first.size(-1))
    return result.numel() * each <= MULTIPLICATIONS


def widened(arguments: Sequence[Any]) -> tuple[Sequence[Any], torch.dtype | None]:
    """Return a product's arguments with wider floats, which a CPU is a hundred times as fast with, and what they were.

    None: they are wide enough.
    """
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    narrow = next((each.dtype for each in tensors if each.dtype in NARROW), None)
    if narrow is None:
        return arguments, None
    return [each.float() if isinstance(each, torch.Tensor) else each for each in arguments], narrow


def overload_of(name: str) -> Any:
    """Return the operator of a name as the dispatcher knows it ("aten::add.Tensor")."""
    base, _, overload = name.partition(".")
    namespace, _, short = base.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
