"""Nets with many kinds of convolutions: torchvision's, and small ones of our own where it has none."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn


def _stage(kind: int, inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d if kind == 2 else nn.Conv3d
    norm = nn.BatchNorm2d if kind == 2 else nn.BatchNorm3d
    layers = []
    for before, after in ((inputs, outputs), (outputs, outputs)):
        layers += [conv(before, after, 3, padding=1, bias=False), norm(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net of four levels over pictures (2) or volumes (3): down by pooling, up by transposed convolutions."""

    def __init__(self, kind: int, inputs: int, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        up = nn.ConvTranspose2d if kind == 2 else nn.ConvTranspose3d
        self.down = nn.ModuleList(_stage(kind, a, b) for a, b in zip([inputs, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2) if kind == 2 else nn.MaxPool3d(2)
        self.up = nn.ModuleList(up(b, a, 2, stride=2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(_stage(kind, 2 * a, a) for a in widths[:-1])
        self.head = (nn.Conv2d if kind == 2 else nn.Conv3d)(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score a class and place."""
        kept = []
        for level, stage in enumerate(self.down):
            x = stage(x)
            if level < len(self.up):
                kept.append(x)
                x = self.pool(x)
        for up, join, beside in zip(reversed(self.up), reversed(self.join), reversed(kept), strict=True):
            x = join(torch.cat([up(x), beside], 1))
        return self.head(x)


class DiffusionBlock(nn.Module):
    """A residual block and self-attention as in the U-Nets of latent diffusion, at 320 channels."""

    def __init__(self, channels: int = 320) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output at half the size."""
        x = self.enter(x)
        h = self.first(nn.functional.silu(self.norms[0](x)))
        x = x + self.second(nn.functional.silu(self.norms[1](h)))
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norms[2](x)).view(batch, 3, 8, channels // 8, height * width).transpose(-1, -2)
        attended = nn.functional.scaled_dot_product_attention(*(part.contiguous() for part in qkv.unbind(1)))
        return self.down(x + self.out(attended.transpose(-1, -2).reshape(batch, channels, height, width)))


class SpeechStem(nn.Module):
    """What stands before a speech transformer: strided, dilated and depthwise convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(80, 512, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(512, 512, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv1d(512, 512, 31, padding=15, groups=512),
            nn.GELU(),
            nn.Conv1d(512, 512, 3, padding=4, dilation=4),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return one vector for every second frame."""
        return self.layers(x)


@dataclass(frozen=True, slots=True)
class Net:
    """A net and the shape of its input, batch first."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _torchvisions(name: str) -> Callable[[], nn.Module]:
    """Import torchvision only for a net of its own: it is not on every machine with a card."""
    return lambda: getattr(importlib.import_module("torchvision.models"), name)()


TYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
STRICT: Final = "fp32-strict"
"""fp32 without TF32."""
LAYOUTS: Final = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
_PICTURES: Final = (3, 224, 224)
NETS: Final = {
    "resnet18": Net(_torchvisions("resnet18"), (32, *_PICTURES)),
    "resnet50": Net(_torchvisions("resnet50"), (32, *_PICTURES)),
    "vgg16": Net(_torchvisions("vgg16"), (32, *_PICTURES)),
    "mobilenet_v2": Net(_torchvisions("mobilenet_v2"), (64, *_PICTURES)),
    "convnext_tiny": Net(_torchvisions("convnext_tiny"), (32, *_PICTURES)),
    "densenet121": Net(_torchvisions("densenet121"), (32, *_PICTURES)),
    "vit_b_16": Net(_torchvisions("vit_b_16"), (16, *_PICTURES)),
    "unet": Net(lambda: UNet(2, 3, 64), (4, 3, 256, 256)),
    "unet_3d": Net(lambda: UNet(3, 1, 32), (2, 1, 64, 64, 64)),
    "diffusion_block": Net(DiffusionBlock, (4, 4, 64, 64)),
    "speech_stem": Net(SpeechStem, (16, 80, 3000)),
}


def settle(type_name: str) -> torch.dtype:
    """Return the type of a name, one of TYPES or STRICT, and allow TF32 or not."""
    torch.backends.cudnn.allow_tf32 = type_name != STRICT
    return TYPES["fp32" if type_name == STRICT else type_name]


def prepare(name: str, layout: str) -> tuple[nn.Module, Tensor]:
    """Make a net and its input on the card; only pictures have another layout than channels first."""
    net = NETS[name]
    model, x = net.make().cuda(), torch.randn(net.shape, device="cuda")
    if x.dim() == 4:
        return model.to(memory_format=LAYOUTS[layout]), x.to(memory_format=LAYOUTS[layout])
    return model, x
