"""Reads the built-in attributes of a tensor, such as `grad`, even if a subclass overrides them."""

from typing import Any, Final, Protocol, TypeVar, cast

from torch import Tensor

T_co = TypeVar("T_co", covariant=True)


class ReadableAttribute(Protocol[T_co]):
    """A descriptor of a read-only tensor attribute."""

    def __get__(self, tensor: Tensor, /) -> T_co: ...


class WritableAttribute(ReadableAttribute[T_co], Protocol[T_co]):
    """A descriptor of a writable tensor attribute."""

    def __set__(self, tensor: Tensor, value: Any, /) -> None: ...


IS_CUDA: Final = cast("ReadableAttribute[bool]", Tensor.is_cuda)
IS_LEAF: Final = cast("ReadableAttribute[bool]", Tensor.is_leaf)
RETAINS_GRAD: Final = cast("ReadableAttribute[bool]", Tensor.retains_grad)
GRAD: Final = cast("WritableAttribute[Tensor | None]", Tensor.grad)
GRAD_FN: Final = cast("ReadableAttribute[Any]", Tensor.grad_fn)
BASE: Final = cast("ReadableAttribute[Tensor | None]", Tensor._base)
