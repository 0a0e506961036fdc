"""Small trainings of many kinds for `ullage.Guard`, and errors that are raised at a chosen place of them.

Every training is the same each time that it is made. No parameter has a gradient that is zero but for rounding (the
bias of keys in attention, or of a convolution before BatchNorm), because nothing could be said of its relative error.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from tests.training.guard.faults import Faults
from tests.training.guard.world import World

STEPS = 3
PADDING = -100
FULL_TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 3.25 MiB is "
    "free. Including non-PyTorch memory, this process has 14.55 GiB memory in use. Of the allocated memory 14.40 GiB "
    "is allocated by PyTorch, and 5.11 MiB is reserved by PyTorch but unallocated."
)
PIECES_TEXT = FULL_TEXT.replace("5.11 MiB", "50.11 MiB")
"""Memory that was there, but in pieces: `empty_cache` is tried before the batch is split."""


class PlacedFaults(Faults):
    """Raises out-of-memory errors at an operation of a phase: "forward", "backward" or "update" of a call of `step`.

    `number` is the operation's place in its phase, as an undisturbed training has counted it.
    """

    def __init__(self, step: int = -1, phase: str = "", number: int = 0, *, times: int = 0, text: str = "") -> None:
        super().__init__(text=text or FULL_TEXT)
        self.step = 0
        self.counted: dict[tuple[int, str], list[str]] = {}
        """The operations of each phase, when it ran for the first time."""
        self.operation = ""
        """The operation at which the last error was raised."""
        self._place = (step, phase)
        self._number, self._times = number, times
        self._phase, self._began = "", 0

    def enter(self, phase: str) -> None:
        """Begin a phase; a step that is undone begins its phases again."""
        if self._times == 0:
            self.counted.setdefault((self.step, self._phase), [str(one) for one in self.operations[self._began :]])
        self._phase, self._began = phase, self.count
        is_due = (self.step, phase) == self._place and self.raised < self._times
        self.at = {self.count + self._number} if is_due else set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.count in self.at:
            self.operation = str(func)
        return super().__torch_dispatch__(func, types, args, kwargs)


def enter(phase: str) -> None:
    """Let the errors that surround a training know which phase begins.

    They are found by no name, because a guard would put them back as a part of the training.
    """
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, PlacedFaults):
            mode.enter(phase)


# ---- models


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        items, tokens, width = hidden.shape
        parts = self.query_key_value(self.norms[0](hidden)).split(width, 2)
        query, key, value = (part.view(items, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = self.projection(attended.transpose(1, 2).reshape(hidden.shape))
        hidden = hidden + F.dropout(attended, self.dropout, self.training)
        return hidden + F.dropout(self.mlp(self.norms[1](hidden)), self.dropout, self.training)


class Gpt(nn.Module):
    """A GPT that returns the numbers before the softmax."""

    def __init__(
        self,
        width: int = 128,
        layers: int = 2,
        tokens: int = 64,
        vocabulary: int = 512,
        *,
        dropout: float = 0.0,
        checkpointed: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.token(tokens) + self.place.weight[: tokens.size(1)]
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointed else block(hidden)
        return self.head(self.norm(hidden))


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.GELU()]
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(512, 10))


# ---- trainings


def made(build: Callable[[str], World], device: str) -> World:
    """Make a training, the same each time."""
    torch.manual_seed(0)
    return build(device)


def mlp(device: str, *, dropout: float = 0.3, optimizer: str = "adamw") -> World:
    """Products and dropout; gradients are clipped."""
    model = nn.Sequential(
        nn.Linear(64, 512), nn.GELU(), nn.Dropout(dropout), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8)
    )
    batches = [(torch.randn(32, 64).to(device), torch.randn(32, 8).to(device)) for _ in range(STEPS)]
    world = _world(model.to(device), batches, lambda batch: F.mse_loss(model(batch[0]), batch[1]), optimizer)
    world.options["clip_grad_norm"] = 0.05
    return world


def gpt(
    device: str,
    *,
    optimizer: str = "adamw_fused",
    autocast: torch.dtype | None = None,
    weighted: bool | None = None,
    accumulated: int = 1,
    shape: tuple[int, int, int, int] = (128, 2, 64, 512),
    items: int = 8,
    **model_options: Any,
) -> World:
    """Tokens. With `weighted` the loss is a mean over valid ones; False leaves out the guard's `weight`."""
    with torch.device(device):
        model = Gpt(*shape, **model_options)
    _, _, tokens, vocabulary = shape
    batches = [_tokens(items, tokens, vocabulary, device, weighted=weighted) for _ in range(STEPS * accumulated)]

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.autocast(device, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            logits = model(batch["tokens"])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=PADDING)
        return loss / accumulated

    world = _world(model, batches, loss_of, optimizer)
    if accumulated > 1:
        world.updates = lambda number: number % accumulated == accumulated - 1
    if weighted:
        world.options["weight"] = lambda part: float(part["valid"].sum())
    return world


def convolutions(device: str, *, autocast: bool = False, batchnorm: str = "", dropout: float = 0.0) -> World:
    """Convolutions and BatchNorm, whose running statistics change in forward."""
    model = nn.Sequential(_convolutions(), nn.Dropout(dropout)).to(device)
    batches: list[Any] = [
        (torch.randn(16, 3, 32, 32).to(device), torch.randint(10, (16,)).to(device)) for _ in range(STEPS)
    ]
    if autocast:
        model = model.to(memory_format=torch.channels_last)
        batches = [(picture.to(memory_format=torch.channels_last), label) for picture, label in batches]

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            output = model(batch[0])
        return F.cross_entropy(output.float(), batch[1])

    world = _world(model, batches, loss_of, "sgd")
    if batchnorm:
        world.options["batchnorm"] = batchnorm
    return world


def scaled(device: str, *, optimizer: str) -> World:
    """float16 with a gradient scaler whose scale grows; gradients are unscaled and clipped."""
    world = gpt(device, optimizer=optimizer, autocast=torch.float16)
    world.scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    world.options["clip_grad_norm"] = 0.5
    return world


def _world(model: nn.Module, batches: list[Any], loss_of: Callable[[Any], Any], optimizer: str) -> World:
    parameters = list(model.parameters())
    if optimizer == "sgd":
        made: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    else:
        made = torch.optim.AdamW(parameters, lr=1e-3, fused=optimizer == "adamw_fused", foreach=optimizer == "adamw")
    return World(model=model, optimizers=[made], batches=batches, loss_of=loss_of)


def _tokens(items: int, tokens: int, vocabulary: int, device: str, *, weighted: bool | None) -> dict[str, torch.Tensor]:
    """Make a batch; with `weighted`, the first items are the short ones, so that parts differ in valid tokens."""
    drawn = torch.randint(vocabulary, (items, tokens + 1))
    labels = drawn[:, 1:].clone()
    if weighted is not None:
        for item in range(items):
            labels[item, math.ceil((item + 1) / items * tokens) :] = PADDING
    # Valid tokens are counted on the host: below a dispatch mode an emulated GPU does not know what labels it was sent.
    valid = (labels != PADDING).sum(1)
    return {"tokens": drawn[:, :-1].contiguous().to(device), "labels": labels.to(device), "valid": valid}


_LARGE = (512, 4, 256, 8192)
_LONG = (512, 8, 4096, 1024)
TRAININGS: dict[str, Callable[[str], World]] = {
    "mlp": mlp,
    "mlp_plain": partial(mlp, dropout=0.0, optimizer="sgd"),
    "gpt_bfloat16_fused": partial(gpt, autocast=torch.bfloat16, dropout=0.1),
    "gpt_bfloat16_weighted": partial(gpt, optimizer="sgd", autocast=torch.bfloat16, weighted=True),
    "gpt_weighted": partial(gpt, optimizer="sgd", weighted=True),
    "gpt_unweighted": partial(gpt, optimizer="sgd", weighted=False),
    "accumulated": partial(gpt, optimizer="adamw", accumulated=2, dropout=0.1),
    "accumulated_bfloat16": partial(gpt, optimizer="sgd", autocast=torch.bfloat16, accumulated=2),
    "checkpointed_dropout": partial(gpt, autocast=torch.bfloat16, checkpointed=True, dropout=0.1),
    "checkpointed": partial(gpt, optimizer="sgd", checkpointed=True),
    "convolutions": partial(convolutions, dropout=0.2),
    "convolutions_bfloat16": partial(convolutions, autocast=True),
    "convolutions_frozen": partial(convolutions, batchnorm="freeze"),
    "scaled": partial(scaled, optimizer="sgd"),
    "scaled_fused": partial(scaled, optimizer="adamw_fused"),
    "large": partial(gpt, optimizer="sgd", shape=_LARGE, items=16),
    "large_bfloat16": partial(gpt, autocast=torch.bfloat16, weighted=True, shape=_LARGE, items=16),
    "large_dropout": partial(gpt, autocast=torch.bfloat16, dropout=0.1, shape=_LARGE, items=16),
    "large_adamw": partial(gpt, optimizer="adamw", shape=_LARGE, items=16),
    "long": partial(gpt, autocast=torch.bfloat16, dropout=0.1, shape=_LONG, items=1),
}
"""Every training by its name; each is made on the device whose name it is given."""
