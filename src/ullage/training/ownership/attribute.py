"""A tensor's own attributes, asked for past what a subclass defines anew. It knows nothing of who owns a tensor.

On the class each is a descriptor; torch's types give what it is of a tensor.
"""

from typing import Any, Final, Protocol, TypeVar, cast

from torch import Tensor

T_co = TypeVar("T_co", covariant=True)


class ReadableAttribute(Protocol[T_co]):
    """An attribute that is read."""

    def __get__(self, tensor: Tensor, /) -> T_co: ...


class WritableAttribute(ReadableAttribute[T_co], Protocol[T_co]):
    """An attribute that is written as well."""

    def __set__(self, tensor: Tensor, value: Any, /) -> None: ...


IS_CUDA: Final = cast("ReadableAttribute[bool]", Tensor.is_cuda)
IS_LEAF: Final = cast("ReadableAttribute[bool]", Tensor.is_leaf)
RETAINS_GRAD: Final = cast("ReadableAttribute[bool]", Tensor.retains_grad)
GRAD: Final = cast("WritableAttribute[Tensor | None]", Tensor.grad)
GRAD_FN: Final = cast("ReadableAttribute[Any]", Tensor.grad_fn)
BASE: Final = cast("ReadableAttribute[Tensor | None]", Tensor._base)
