"""Access to a tensor's built-in attributes, such as `grad`, even if a tensor subclass overrides them.

Each name here is the descriptor on `torch.Tensor` or its base class: `GRAD.__get__(tensor)` returns the value that
PyTorch stores. This module does not depend on the rest of the package.
"""

from typing import Any, Final, Protocol, TypeVar, cast

from torch import Tensor

T_co = TypeVar("T_co", covariant=True)


class ReadableAttribute(Protocol[T_co]):
    """A descriptor of a tensor attribute that can be read but not assigned."""

    def __get__(self, tensor: Tensor, /) -> T_co: ...


class WritableAttribute(ReadableAttribute[T_co], Protocol[T_co]):
    """A descriptor of a tensor attribute that can be read and assigned."""

    def __set__(self, tensor: Tensor, value: Any, /) -> None: ...


IS_CUDA: Final = cast("ReadableAttribute[bool]", Tensor.is_cuda)
IS_LEAF: Final = cast("ReadableAttribute[bool]", Tensor.is_leaf)
RETAINS_GRAD: Final = cast("ReadableAttribute[bool]", Tensor.retains_grad)
GRAD: Final = cast("WritableAttribute[Tensor | None]", Tensor.grad)
GRAD_FN: Final = cast("ReadableAttribute[Any]", Tensor.grad_fn)
BASE: Final = cast("ReadableAttribute[Tensor | None]", Tensor._base)
