"""The convolutions of a net as its layers state them: shapes, strides, paddings, layouts; seen by hooks on the modules.

    python benchmarks/cudnn/layers.py resnet50:fp32:channels_last unet:fp16:channels_first

prints a JSON list for each, in a line. This is the one side of a comparison: nothing here looks at what the emulated
cuDNN is asked, and the card that torch runs on asks nothing of the real one.
"""

import json
import sys
from typing import Any

import ullage

ullage.emulate("80GiB", cudnn_workspace_bytes=0)

import torch  # noqa: E402  # a card has to be there first
from nets import prepare, settle  # noqa: E402  # imports torch
from torch import Tensor, nn  # noqa: E402  # a card has to be there first


def convolutions_of(name: str, dtype: torch.dtype, layout: str) -> list[dict[str, Any]]:
    """List what every convolution of a net takes and gives, in the order of their calls."""
    model, x = prepare(name, layout)
    found: list[dict[str, Any]] = []

    def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (given,) = inputs
        last = any(_is_channels_last(tensor) for tensor in (given, module.weight))
        found.append(
            {
                "x": list(given.shape),
                "w": list(module.weight.shape),
                "y": list(output.shape),
                "stride": list(module.stride),
                "padding": list(module.padding),
                "dilation": list(module.dilation),
                "transposed": isinstance(module, nn.modules.conv._ConvTransposeNd),
                "channels_last": last,
                "depthwise": module.groups > 1 and module.groups == module.in_channels,
                "input_needs_grad": given.requires_grad,
            }
        )

    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            module.register_forward_hook(see)
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        model(x)
    return found


def _is_channels_last(tensor: Tensor) -> bool:
    """Tell by strides, as `Tensor::suggest_memory_format` does: sizes of 1 leave both layouts possible."""
    return tensor.dim() == 4 and tensor.stride() == torch.empty_like(tensor, memory_format=torch.channels_last).stride()


if __name__ == "__main__":
    for word in sys.argv[1:]:
        name, type_name, layout = word.split(":")
        print(json.dumps(convolutions_of(name, settle(type_name), layout)), flush=True)
