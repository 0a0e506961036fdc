"""Runs a computation in a wide floating-point type, whatever types the model, the batch and autocast use.

Rounding then cannot hide that a loss depends on several items: in bfloat16, a gradient that is a few percent off looks
like rounding. Casts to narrower types are ignored, and each operator gets its floating-point arguments in the wide
type. Parameters are not copied: an argument is converted for one operator at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_SOFTMAX: Final = ("_softmax", "_log_softmax")
_SOFTMAX_BACKWARD: Final = ("_softmax_backward_data", "_log_softmax_backward_data")
_NLL_LOSSES: Final = ("nll_loss_forward", "nll_loss2d_forward")
_CHECKED: Final = frozenset(
    (
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
        *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell),
    )
)
_DIVISIONS: Final = ("div", "true_divide")
_MEAN: Final = 1
"""The number of `reduction="mean"` in PyTorch's operators (`at::Reduction`)."""


class Precise(TorchDispatchMode):
    """A dispatch mode in which floating-point operators compute in a wide type.

    Args:
        wide: the type in which operators compute: float64, or float32.
    """

    supports_higher_order_operators = True

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wide = wide
        self.has_narrow = False
        """Whether an argument or a cast was of a type with less precision than float32."""
        self.counts: list[float] = []
        """Numbers by which the computation divides, in its order. Those of a mean over counted terms are among them.

        Cross entropy divides by the number of targets that are not `ignore_index`, or by the sum of their weights. A
        mean over a mask is divided by the sum of the mask, and a mean of selected elements by their number.
        """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name == "_to_copy" and _is_cast_by_autograd():
            return func(*args, **kwargs)
        if self._is_narrow(kwargs.get("dtype")):
            kwargs["dtype"] = self.wide
        schema = func._schema
        if name == "div_" and _is_a_number(args[1]):
            self.counts.append(float(args[1]))
        if any(argument.is_write for argument in schema.arguments):
            return func(*self._for_writing(schema, args), **kwargs)
        if any(returned.alias_info is not None for returned in schema.returns):
            return func(*args, **kwargs)  # a view keeps the type of its tensor
        if name in _SOFTMAX and len(args) == 3:
            args = (*args[:2], False)
        if name in _SOFTMAX_BACKWARD:
            args = (*args[:3], self.wide)
        args, kwargs = tree_map_only(torch.Tensor, self._widened, (args, kwargs))
        result = func(*args, **kwargs)
        if name in _NLL_LOSSES and args[3] == _MEAN:
            self.counts.append(float(result[1]))
        elif name in _DIVISIONS and _is_a_number(args[1]):
            self.counts.append(float(args[1]))
        elif name == "mean" and result.numel():
            self.counts.append(args[0].numel() / result.numel())
        return result

    def _is_narrow(self, dtype: Any) -> bool:
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            return False
        self.has_narrow |= torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
        return torch.finfo(dtype).eps > torch.finfo(self.wide).eps

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.wide) if self._is_narrow(tensor.dtype) else tensor

    def _for_writing(self, schema: Any, args: Any) -> list[Any]:
        """Return the arguments of an operator that writes into a tensor: the others get the type of that tensor."""
        written = [
            value
            for value, argument in zip(args, schema.arguments, strict=False)
            if argument.is_write and isinstance(value, torch.Tensor)
        ]
        dtype = written[0].dtype if written and written[0].is_floating_point() else None

        def fitted(tensor: torch.Tensor) -> torch.Tensor:
            is_other = dtype is not None and tensor.is_floating_point() and tensor.dtype is not dtype
            return tensor.to(dtype) if is_other and tensor.dim() else tensor

        return [
            value if argument.is_write else tree_map_only(torch.Tensor, fitted, value)
            for value, argument in zip(args, schema.arguments, strict=False)
        ]


def _is_a_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not value.is_complex()
    return isinstance(value, int | float)


def _is_cast_by_autograd() -> bool:
    """Return whether the autograd engine casts a gradient to the type of its tensor, on which it insists.

    It does so between two nodes of the graph, and in the nodes of casts. A forward pass that is run again in backward
    (checkpointing) runs inside of another node, with gradients switched on.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    if not torch.is_grad_enabled():
        return True
    node = torch._C._current_autograd_node()  # gradients of gradients
    return node is None or type(node).__name__.startswith("ToCopyBackward")


class WideLayers(TorchFunctionMode):
    """A mode in which convolutions and recurrent layers get all their arguments in a wide type.

    They compare the types of their arguments before they reach a dispatch mode.
    """

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self._wide = wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CHECKED:
            fitted = lambda tensor: tensor.to(self._wide) if tensor.is_floating_point() else tensor  # noqa: E731
            args, kwargs = tree_map_only(torch.Tensor, fitted, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def exact_products() -> Iterator[None]:
    """Switch off TF32 and autocast's cache of narrow weights for the time of the context."""
    precision = torch.get_float32_matmul_precision()
    is_caching = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    torch.set_float32_matmul_precision("highest")
    try:
        cudnn = torch.backends.cudnn
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_autocast_cache_enabled(is_caching)
        torch.clear_autocast_cache()
