"""Decide from the schema of a PyTorch operator how ullage intercepts the operator."""

import math
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch

NUMBERS: Final = frozenset((int, float, bool, complex))

# These change no values, like views. The dispatcher runs them without calling Python.
_PASSED: Final = frozenset(
    (
        # views and shapes: the content belongs to the storage
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
"""The names of the operators for matrix products and convolutions.

ullage intercepts all of these operators only if the option `values` is "all".
"""
# Small products and convolutions are computed on demand from their inputs, so that results are consistent with each
# other. The rows of a product are as large as the rows of its input, its columns are as similar as the columns of the
# weights, and a convolution of overlapping windows gives similar results. So the score of a graph node depends on its
# number of neighbours, a token is more similar to itself than to other tokens, and a heat map has fewer peaks than
# noise. Independent random numbers would have none of these properties. The inputs are known or random; the result
# always counts as random, because a GPU rounds differently.
_CONVOLUTION: Final = "aten::cudnn_convolution"
# the positions of the two factors in the argument list
_FACTORS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", _CONVOLUTION), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), (1, 2)),
}
PRODUCTS: Final = frozenset(_FACTORS)
"""Matrix products and convolutions that may be computed on the host."""
MULTIPLICATIONS: Final = 1 << 27
"""The largest number of multiplications in a matrix product that ullage computes on the host.

This many multiplications take about ten milliseconds. Random values replace the results of larger products.
"""
NARROW: Final = frozenset((torch.float16, torch.bfloat16))
"""Floating-point types that are slow on a CPU."""

_NEVER_SEEN: Final = (_PASSED | HEAVY) - PRODUCTS
# Intercepted as a whole, although they have no CUDA kernel. If the host computed `_euclidean_dist` through a matrix
# product of random values, it would take the roots of negative numbers.
_LEAVES: Final = frozenset(("aten::copy_", "aten::lift_fresh", "aten::_euclidean_dist"))
# A nested tensor reads its offsets in these. PyTorch's work for a tensor subclass is intercepted only if the operator
# itself is intercepted (torch/nested/_internal/ops.py).
_READ_FOR_SUBCLASSES: Final = frozenset(
    ("aten::unbind", "aten::chunk", "aten::clone", "aten::select", "aten::matmul", "aten::contiguous")
)
CLOSED: Final = frozenset(
    (
        *("aten::pow.Scalar", "aten::pow.Scalar_out", "aten::isin.Scalar_Tensor", "aten::isin.Scalar_Tensor_out"),
        *("aten::bucketize.Scalar", "aten::searchsorted.Scalar"),
    )
)
"""Operators inside which no operator may be intercepted.

They wrap a number in a GPU tensor, which PyTorch cannot pass to Python (`toPyObject` in
torch/csrc/jit/python/pybind_utils.cpp).
"""
_NAMESPACES_WITHOUT_VALUES: Final = ("profiler", "prim", "prims", "inductor", "quantized", "_quantized", "rngprims")

# PyTorch tests the operators in these namespaces on both CPU and GPU.
_NAMESPACES_OF_PYTORCH: Final = frozenset(
    (
        *("aten", "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "torchvision", "rngprims"),
        *("profiler", "prim", "prims", "inductor", "quantized", "_quantized", "higher_order", "debugprims", "fsdp"),
        *("quantized_decomposed", "sparse", "xnnpack", "prepacked", "mkldnn", "mkl", "onednn", "mkldnn_prepacked"),
    )
)


def argument_at(place: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return an argument by its position or name. None: the argument was omitted."""
    return arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)


class OperatorPlan:
    """The properties of an operator that decide how its calls are handled."""

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
        """The positions of tensor arguments for which a script may pass a Python number."""
        self.is_closed = operator.name() in CLOSED
        """Whether the operators that this operator calls run without interception by ullage."""
        self._with_numbers: dict[tuple[int, ...], Any] = {}
        self.written = [place for place, each in places if each.alias_info is not None and each.alias_info.is_write]
        """The positions of the arguments that the operator writes, or their names if they are keyword-only."""
        self.is_random = torch.Tag.nondeterministic_seeded in operator.tags
        returns_views = bool(schema.returns) and all(
            each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
        )
        self.operator = operator
        self.is_composite = (is_composite(operator.name()) or returns_views) and self.name not in _LEAVES
        """Whether the operator returns a view, or only calls operators that ullage intercepts instead."""
        self.has_lists_only = self.name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach"))
        """Whether the operator works on lists of tensors, such as all parameters of an optimizer."""
        self.is_foreign = is_foreign(self.name)
        """Whether a script or a library defines the operator.

        Its CPU kernel is assumed to compute the same as its CUDA kernel.
        """
        self.is_collective = self.name.startswith(("c10d::", "_c10d_functional::", "symm_mem::"))

    def for_host(self, operator: Any, arguments: Sequence[Any]) -> Any:
        """Return the overload of an operator that accepts these arguments."""
        places = self.numbers_in(arguments)
        return self.with_numbers(operator, places) or operator if places else operator

    def numbers_in(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return the positions of tensor arguments for which the script passed a number."""
        return tuple(
            place for place in self.number_places if place < len(arguments) and arguments[place].__class__ in NUMBERS
        )

    def with_numbers(self, operator: Any, places: tuple[int, ...]) -> Any:
        """Return the overload of an operator that accepts Python numbers at the given argument positions, or None."""
        if places not in self._with_numbers:
            self._with_numbers[places] = _with_numbers(operator, places)
        return self._with_numbers[places]


plan_of: Final = cache(OperatorPlan)
"""Returns how ullage intercepts an operator. Results are cached."""


def _with_numbers(operator: Any, places: tuple[int, ...]) -> Any:
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
    """Return whether a script or a library defines an operator such as "torch_scatter::segment_sum"."""
    return name.partition("::")[0] not in _NAMESPACES_OF_PYTORCH


def composites() -> frozenset[str]:
    """Return the names of all composite operators.

    One query for all operators is ten times as fast as a query for each.
    """
    names = torch._C._dispatch_get_registrations_for_dispatch_key
    made = {*names("CompositeImplicitAutograd"), *names("CompositeExplicitAutograd")}
    return frozenset(made.difference(names("CUDA"), CLOSED))


def passes(name: str, made_of_others: Container[str], *, everything: bool) -> bool:
    """Return whether an operator such as "aten::empty.memory_format" runs without interception."""
    base, _, overload = name.partition(".")
    if base in _READ_FOR_SUBCLASSES:
        return False
    if base in (_PASSED if everything else _NEVER_SEEN):
        return overload not in ("out", "out_t")
    return base.partition("::")[0] in _NAMESPACES_WITHOUT_VALUES or (name in made_of_others and base not in _LEAVES)


def is_composite(name: str) -> bool:
    """Return whether an operator consists of other operators that are intercepted."""
    if name in CLOSED:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(
        (has(name, "CompositeImplicitAutograd") or has(name, "CompositeExplicitAutograd")) and not has(name, "CUDA")
    )


def is_small(name: str, arguments: Sequence[Any], result: torch.Tensor, most_bytes: int) -> bool:
    """Return whether a matrix product is small enough to be computed on the host."""
    first, second = (arguments[place] for place in _FACTORS[name])
    if not result.dtype.is_floating_point:
        return False
    if any(math.prod(each.size()) * each.dtype.itemsize > most_bytes for each in (result, first, second)):
        return False
    each = second.numel() // max(second.size(0), 1) if name == _CONVOLUTION else int(first.size(-1))
    return result.numel() * each <= MULTIPLICATIONS


def widened(arguments: Sequence[Any]) -> tuple[Sequence[Any], torch.dtype | None]:
    """Convert half-precision arguments of a matrix product to float32, and return them with their original type.

    A CPU is a hundred times as fast with float32. The type is None if nothing was converted.
    """
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    narrow = next((each.dtype for each in tensors if each.dtype in NARROW), None)
    if narrow is None:
        return arguments, None
    return [each.float() if isinstance(each, torch.Tensor) else each for each in arguments], narrow


def overload_of(name: str) -> Any:
    """Return the operator overload with a name such as "aten::add.Tensor"."""
    base, _, overload = name.partition(".")
    namespace, _, short = base.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
