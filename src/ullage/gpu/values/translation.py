"""CPU functions that compute the same as CUDA-only operators.

Each function takes the operator's arguments as host tensors, by the names in its schema, and returns the results in
order. If a script cannot use some results, such as library states, the others are returned by position.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from ullage.gpu.values.content import INTERCEPTION_KEY

Arguments = Mapping[str, Any]
Results = torch.Tensor | Sequence[Any] | Mapping[int, torch.Tensor]

aten: Final = torch.ops.aten
_MOST_STATES: Final = 4096


class _DropoutStates:
    def __init__(self) -> None:
        self._states: dict[int, torch.Tensor] = {}
        self._next = 1

    def keep(self) -> torch.Tensor:
        number, self._next = self._next, self._next + 1
        self._states[number] = torch.default_generator.get_state()
        if len(self._states) > _MOST_STATES:
            del self._states[next(iter(self._states))]
        return torch.tensor(number, device="cpu")

    def run(self, ticket: torch.Tensor, compute: Callable[[], Any]) -> Any:
        state = self._states.get(int(ticket.flatten()[0])) if ticket.numel() else None
        if state is None:
            return compute()
        generator = torch.default_generator
        now = generator.get_state()
        generator.set_state(state)
        try:
            return compute()
        finally:
            generator.set_state(now)


_dropout: Final = _DropoutStates()


def with_gradients(function: Callable[..., Any], inputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Call a function with gradients enabled, and return the gradient of each input or None."""
    with torch._C._ForceDispatchKeyGuard(_KEYS_INCLUDED, _KEYS_LEFT_OUT), torch.enable_grad():
        leaves = [
            each.detach().requires_grad_() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
            for each in inputs
        ]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=False)
            if gradient is not None and output.requires_grad
        ]
        wanted = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        found = iter(
            torch.autograd.grad(
                [output for output, _ in pairs], wanted, [gradient for _, gradient in pairs], allow_unused=True
            )
        )
        return [next(found) if isinstance(each, torch.Tensor) and each.requires_grad else None for each in leaves]


_KEYS_INCLUDED: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect).add(
    torch._C.DispatchKey.ADInplaceOrView
)
_KEYS_LEFT_OUT: Final = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.Python).add(INTERCEPTION_KEY).add("AutocastCPU").add("AutocastCUDA")
)

# ---- convolutions


def _convolution(a: Arguments) -> Any:
    output_padding = a.get("output_padding")
    is_transposed = output_padding is not None
    zero = [0] * len(a["padding"])
    return aten.convolution(
        *(a["self"], a["weight"], a.get("bias"), a["stride"], a["padding"], a["dilation"]),
        *(is_transposed, output_padding or zero, a.get("groups", a["self"].size(1))),
    )


def _convolution_add_relu(a: Arguments) -> Any:
    alpha = 1 if a["alpha"] is None else a["alpha"]
    return (_convolution(a) + alpha * a["z"]).relu_()


# ---- batch normalisation


def _batch_norm(a: Arguments) -> Any:
    return aten.native_batch_norm(
        *(a["input"], a["weight"], a["bias"], a["running_mean"], a["running_var"], a["training"]),
        *(a["exponential_average_factor"], a["epsilon"]),
    )


def _batch_norm_backward(a: Arguments) -> Any:
    return aten.native_batch_norm_backward(
        *(a["grad_output"], a["input"], a["weight"], a["running_mean"], a["running_var"], a["save_mean"]),
        *(a["save_var"], True, a["epsilon"], [True, True, True]),
    )


def _others(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _by_channel(vector: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *(1 for _ in tensor.shape[2:]))


def _batch_norm_stats(a: Arguments) -> Any:
    numbers = a["input"].float()
    variance = numbers.var(_others(numbers), unbiased=False)
    return numbers.mean(_others(numbers)), (variance + a["eps"]).rsqrt()


def _batch_norm_gather(a: Arguments) -> Any:
    counts = a.get("counts")
    means, inverses = a["mean"], a["invstd"]
    counts = means.new_full((means.size(0),), a["count"]) if counts is None else counts.to(means.dtype).flatten()
    share = (counts / counts.sum())[:, None]
    mean = (means * share).sum(0)
    variance = ((inverses**-2 - a["eps"] + (means - mean) ** 2) * share).sum(0)
    if a["running_mean"] is not None:
        total = float(counts.sum())
        a["running_mean"].lerp_(mean.to(a["running_mean"].dtype), a["momentum"])
        a["running_var"].lerp_((variance * total / (total - 1)).to(a["running_var"].dtype), a["momentum"])
    return mean, (variance + a["eps"]).rsqrt()


def _batch_norm_elements(a: Arguments) -> Any:
    numbers = a["input"]
    result = (numbers - _by_channel(a["mean"], numbers)) * _by_channel(a["invstd"], numbers)
    if a["weight"] is not None:
        result = result * _by_channel(a["weight"], numbers) + _by_channel(a["bias"], numbers)
    return result


def _batch_norm_reduce(a: Arguments) -> Any:
    gradient, numbers = a["grad_out"].float(), a["input"].float()
    off = numbers - _by_channel(a["mean"], numbers)
    total, product = gradient.sum(_others(gradient)), (gradient * off).sum(_others(gradient))
    return total, product, product * a["invstd"], total


def _batch_norm_backward_elements(a: Arguments) -> Any:
    gradient, numbers = a["grad_out"].float(), a["input"].float()
    count = a["count"].sum()
    off = numbers - _by_channel(a["mean"], numbers)
    inverse = a["invstd"]
    product = _by_channel(a["sum_dy_xmu"] / count * inverse**2, numbers)
    result = (gradient - _by_channel(a["sum_dy"] / count, numbers) - off * product) * _by_channel(inverse, numbers)
    return result if a["weight"] is None else result * _by_channel(a["weight"].float(), numbers)


# ---- attention


def _attend(a: Arguments, query: Any, key: Any, value: Any, bias: Any = None) -> Any:
    return functional.scaled_dot_product_attention(
        query, key, value, bias, a.get("dropout_p", 0.0), a.get("is_causal", False), scale=a.get("scale")
    )


def _attention(ticket: int) -> Callable[[Arguments], Results]:

    def compute(a: Arguments) -> Results:
        found: dict[int, torch.Tensor] = {}
        if a.get("dropout_p", 0.0) > 0:
            found[ticket] = _dropout.keep()
        query, key, value, bias = a["query"], a["key"], a["value"], a.get("attn_bias")
        output = _attend(a, query, key, value, bias)
        scale = query.size(-1) ** -0.5 if a.get("scale") is None else a["scale"]
        found[0] = output
        found[1] = _log_sum(query, key, bias, scale, is_causal=a.get("is_causal", False))
        return found

    return compute


def _log_sum(query: Any, key: Any, bias: Any, scale: float, *, is_causal: bool) -> Any:
    if key.size(1) != query.size(1):
        key = key.repeat_interleave(query.size(1) // key.size(1), 1)
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return scores.logsumexp(-1)


def _attention_backward(a: Arguments) -> Results:
    inputs = [a["query"], a["key"], a["value"], a.get("attn_bias")]
    gradient = a.get("grad_out_", a.get("grad_out"))

    def compute() -> list[Any]:
        return with_gradients(lambda *tensors: _attend(a, *tensors), inputs, [gradient])

    found = _dropout.run(a["philox_seed"], compute) if a.get("dropout_p", 0.0) > 0 else compute()
    return {place: each for place, each in enumerate(found) if each is not None}


# ---- recurrent layers


def _recur(a: Arguments, numbers: Any, hidden: Any, cell: Any, *weights: Any) -> Any:
    function: Any = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)[a["mode"]]
    state = (hidden, cell) if a["mode"] == 2 else hidden
    per_layer = a["weight_stride0"] - (1 if a["proj_size"] else 0)
    rows = (1, 1, 4, 3)[a["mode"]] * a["hidden_size"]
    shapes = [(rows, -1), (rows, -1), *[(rows,)] * (per_layer - 2), *[(a["proj_size"], -1)] * bool(a["proj_size"])]
    # Autocast passes the weights in the shapes of its single buffer.
    weights = tuple(each.reshape(shapes[number % len(shapes)]) for number, each in enumerate(weights))
    shape = (per_layer == 4, a["num_layers"], a["dropout"], a["train"], a["bidirectional"])
    if a["batch_sizes"]:
        return function(numbers, torch.tensor(a["batch_sizes"], device="cpu"), state, list(weights), *shape)
    return function(numbers, state, list(weights), *shape, a["batch_first"])


def _recurrent(a: Arguments) -> Results:
    ticket = _dropout.keep() if a["dropout"] > 0 and a["train"] else None
    found = dict(enumerate(_recur(a, a["input"], a["hx"], a["cx"], *a["weight"])))
    if ticket is not None:
        found[3] = ticket
    return found


def _recurrent_backward(a: Arguments) -> Results:
    inputs = [a["input"], a["hx"], a["cx"], *a["weight"]]
    gradients = [a["grad_output"], a["grad_hy"], a["grad_cy"]]

    def compute() -> list[Any]:
        return with_gradients(lambda *tensors: _recur(a, *tensors), inputs, gradients)

    has_dropout = a["dropout"] > 0 and a["train"]
    ticket = a["reserve"][:8].clone().view(torch.int64) if has_dropout else None
    found = compute() if ticket is None else _dropout.run(ticket, compute)
    return [*found[:3], found[3:]]


def _lstm_cell(a: Arguments) -> Results:
    gates = a["input_gates"] + a["hidden_gates"]
    if a["input_bias"] is not None:
        gates = gates + a["input_bias"] + a["hidden_bias"]
    into, forget, new, out = gates.chunk(4, 1)
    into, forget, new, out = into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    cell = forget * a["cx"] + into * new
    return out * cell.tanh(), cell, torch.cat([into, forget, new, out], 1)


def _lstm_cell_backward(a: Arguments) -> Results:
    into, forget, new, out = a["workspace"].chunk(4, 1)
    shape = a["cy"]
    of_hidden = torch.zeros_like(shape) if a["grad_hy"] is None else a["grad_hy"]
    of_cell = torch.zeros_like(shape) if a["grad_cy"] is None else a["grad_cy"]
    squashed = a["cy"].tanh()
    of_cell = of_cell + of_hidden * out * (1 - squashed**2)
    gates = torch.cat(
        [
            of_cell * new * into * (1 - into),
            of_cell * a["cx"] * forget * (1 - forget),
            of_cell * into * (1 - new**2),
            of_hidden * squashed * out * (1 - out),
        ],
        1,
    )
    found = {0: gates, 1: of_cell * forget}
    return {**found, 2: gates.sum(0)} if a["has_bias"] else found


def _gru_cell(a: Arguments) -> Results:
    inputs, hidden = a["input_gates"], a["hidden_gates"]
    if a["input_bias"] is not None:
        inputs, hidden = inputs + a["input_bias"], hidden + a["hidden_bias"]
    (of_reset, of_update, of_new), (reset, update, new) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    reset, update = (of_reset + reset).sigmoid(), (of_update + update).sigmoid()
    fresh = (of_new + reset * new).tanh()
    return fresh + update * (a["hx"] - fresh), torch.cat([reset, update, fresh, a["hx"], new], 1)


def _gru_cell_backward(a: Arguments) -> Results:
    reset, update, fresh, before, new = a["workspace"].chunk(5, 1)
    gradient = a["grad_hy"]
    of_fresh = gradient * (1 - update) * (1 - fresh**2)
    of_update = gradient * (before - fresh) * update * (1 - update)
    of_reset = of_fresh * new * reset * (1 - reset)
    inputs = torch.cat([of_reset, of_update, of_fresh], 1)
    hidden = torch.cat([of_reset, of_update, of_fresh * reset], 1)
    found = {0: inputs, 1: hidden, 2: gradient * update}
    return {**found, 3: inputs.sum(0), 4: hidden.sum(0)} if a["has_bias"] else found


# ---- other operators


def _rms_norm_backward(a: Arguments) -> Results:
    def normed(numbers: Any, weight: Any) -> Any:
        factor = a["rstd"]
        eps = (factor**-2 - numbers.detach().float().pow(2).mean(-1, keepdim=True)).mean().clamp(min=0)
        squares = (
            numbers.float().pow(2).mean([-each for each in range(1, len(a["normalized_shape"]) + 1)], keepdim=True)
        )
        result = numbers * (squares + eps).rsqrt().to(numbers.dtype)
        return result if weight is None else result * weight

    found = with_gradients(normed, [a["input"], a["weight"]], [a["grad_out"]])
    return {place: each for place, each in enumerate(found) if each is not None}


def _softmax(operator: Any) -> Callable[[Arguments], Any]:

    def compute(a: Arguments) -> Any:
        return operator(a["self"].float() if a["half_to_float"] else a["self"], a["dim"], False)  # noqa: FBT003

    return compute


def _softmax_backward(operator: Any) -> Callable[[Arguments], Any]:
    def compute(a: Arguments) -> Any:
        gradient, output = a["grad_output"], a["output"]
        if gradient.dtype == a["input_dtype"]:
            return operator(gradient, output, a["dim"], a["input_dtype"])
        return operator(gradient, output, a["dim"], gradient.dtype).to(a["input_dtype"])

    return compute


def _scaled_product(a: Arguments) -> Any:
    found = (a["self"].float() * a["scale_a"]) @ (a["mat2"].float() * a["scale_b"])
    if a["bias"] is not None:
        found = found + a["bias"]
    if a["scale_result"] is not None:
        found = found * a["scale_result"]
    return found if a["out_dtype"] is None else found.to(a["out_dtype"])


def _ctc_loss(a: Arguments) -> Results:
    def loss(scores: Any) -> torch.Tensor:
        return functional.ctc_loss(
            *(scores, a["targets"], a["input_lengths"], a["target_lengths"], a["blank"], "none", a["zero_infinity"])
        )

    found = loss(a["log_probs"])
    gradient = with_gradients(loss, [a["log_probs"]], [torch.ones_like(found)])[0]
    return found, gradient


def _sampling(a: Arguments) -> dict[str, Any]:
    shape = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": True}
    return {"input": a["self"], "grid": a["grid"], **shape}


def _with_dtype(compute: Callable[[Arguments], torch.Tensor]) -> Callable[[Arguments], torch.Tensor]:
    def widened(a: Arguments) -> torch.Tensor:
        wide = a["out_dtype"]
        return compute({name: each.to(wide) if isinstance(each, torch.Tensor) else each for name, each in a.items()})

    return widened


TRANSLATIONS: Final[Mapping[str, Callable[[Arguments], Results]]] = {
    "aten::cudnn_convolution": _convolution,
    "aten::cudnn_convolution_transpose": _convolution,
    "aten::cudnn_convolution_relu": lambda a: _convolution(a).relu_(),
    "aten::cudnn_convolution_add_relu": _convolution_add_relu,
    "aten::_conv_depthwise2d": _convolution,
    "aten::conv_depthwise3d": _convolution,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::batch_norm_stats": _batch_norm_stats,
    "aten::batch_norm_gather_stats": _batch_norm_gather,
    "aten::batch_norm_gather_stats_with_counts": _batch_norm_gather,
    "aten::batch_norm_elemt": _batch_norm_elements,
    "aten::batch_norm_backward_reduce": _batch_norm_reduce,
    "aten::batch_norm_backward_elemt": _batch_norm_backward_elements,
    "aten::_scaled_dot_product_efficient_attention": _attention(2),
    "aten::_scaled_dot_product_flash_attention": _attention(6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(6),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_cudnn_rnn": _recurrent,
    "aten::_cudnn_rnn_backward": _recurrent_backward,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten::_cudnn_ctc_loss": _ctc_loss,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::_softmax": _softmax(aten._softmax),
    "aten::_log_softmax": _softmax(aten._log_softmax),
    "aten::_softmax_backward_data": _softmax_backward(aten._softmax_backward_data),
    "aten::_log_softmax_backward_data": _softmax_backward(aten._log_softmax_backward_data),
    "aten::_scaled_mm": _scaled_product,
    "aten::_masked_scale": lambda a: a["self"] * a["mask"] * a["scale"],
    "aten::cudnn_grid_sampler": lambda a: aten.grid_sampler_2d(**_sampling(a)),
    "aten::cudnn_grid_sampler_backward": lambda a: aten.grid_sampler_2d_backward(
        a["grad_output"], **_sampling(a), output_mask=[True, True]
    ),
    "aten::mm.dtype": _with_dtype(lambda a: a["self"] @ a["mat2"]),
    "aten::bmm.dtype": _with_dtype(lambda a: a["self"] @ a["mat2"]),
    "aten::addmm.dtype": _with_dtype(lambda a: a["beta"] * a["self"] + a["alpha"] * (a["mat1"] @ a["mat2"])),
    "aten::baddbmm.dtype": _with_dtype(lambda a: a["beta"] * a["self"] + a["alpha"] * (a["batch1"] @ a["batch2"])),
}
WITHOUT_VALUES: Final = frozenset(
    (
        *("aten::_cudnn_init_dropout_state", "aten::_cudnn_rnn_flatten_weight", "aten::_use_cudnn_ctc_loss"),
        *("aten::_use_miopen_ctc_loss", "aten::record_stream", "aten::_fill_mem_eff_dropout_mask_"),
    )
)
"""CUDA-only operators without a CPU replacement. Scripts do not use the values that these operators compute."""


def translation_of(operator: Any) -> Callable[[Arguments], Results] | None:
    """Return the CPU function for a CUDA-only operator, or None if there is none."""
    overload = operator._overloadname
    name = operator._schema.name
    return TRANSLATIONS.get(f"{name}.{overload}") or (TRANSLATIONS.get(name) if overload != "out" else None)


def bound(operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Map the names in an operator's schema to its arguments, including defaults."""
    found: dict[str, Any] = {}
    for number, argument in enumerate(operator._schema.arguments):
        if number < len(arguments) and not argument.kwarg_only:
            found[argument.name] = arguments[number]
        elif argument.name in keywords:
            found[argument.name] = keywords[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found
