"""Loops that each follow one advice: GPT-2 small or ResNet-50, as large as a T4 takes them, or small on the CPU."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

SMALL = {"vocabulary": 1024, "length": 64, "width": 192, "layers": 4, "heads": 4}
FULL = {"vocabulary": 50257, "length": 1024, "width": 768, "layers": 12, "heads": 12}
CARD, ITEMS = "T4", 12
PICTURES = 96
"""Items of a batch of ResNet-50, of 224 x 224 pixels."""


@dataclass(kw_only=True)
class Loop:
    """A training loop as people write it: what a step made lives until the next one makes it anew.

    Everything about it can be changed. Autocast is to fp16, on the GPU alone.
    """

    items: int = ITEMS
    device: str = "cuda"
    sizes: dict[str, int]
    checkpointing: bool = False
    autocast: bool = True
    prepare: Callable[[Any], Any] = lambda model: model
    optimizer_of: Callable[[Any], Any] | None = None
    forward_in: Callable[[], Any] = contextlib.nullcontext
    step: Callable[[Self, Any], None]
    model: Any = None
    optimizer: Any = None
    output: Any = None
    loss: Any = None
    kept: Any = None

    def build(self) -> None:
        """Make the model and its optimizer."""
        import torch

        from examples.train_gpt2 import GPT2

        torch.manual_seed(0)
        with torch.device(self.device):
            self.model = self.prepare(GPT2(**self.sizes, checkpointing=self.checkpointing))
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = (self.optimizer_of or torch.optim.AdamW)(parameters)

    def batch(self, length: int | None = None) -> Any:
        """Return tokens; of another length than the model's where it is given."""
        import torch

        shape = (self.items, (length or self.sizes["length"]) + 1)
        return torch.randint(0, self.sizes["vocabulary"], shape).to(self.device)

    def casting(self) -> Any:
        """Return the context of forward."""
        import torch

        return torch.autocast("cuda", dtype=torch.float16, enabled=self.autocast)

    def forward(self, tokens: Any) -> None:
        """Compute the loss."""
        import torch.nn.functional as F

        with self.forward_in(), self.casting():
            self.output = self.model(tokens[:, :-1])
            self.loss = F.cross_entropy(self.output.flatten(0, 1), tokens[:, 1:].flatten())

    def update(self) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(kw_only=True)
class PictureLoop(Loop):
    """The same for ResNet-50."""

    def build(self) -> None:
        import torch
        from torchvision.models import resnet50

        torch.manual_seed(0)
        with torch.device(self.device):
            self.model = self.prepare(resnet50())
        self.optimizer = (self.optimizer_of or (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)))(
            list(self.model.parameters())
        )

    def batch(self, length: int | None = None) -> Any:
        import torch

        return torch.zeros(self.items, 3, 224, 224, device=self.device)

    def forward(self, tokens: Any) -> None:
        with self.forward_in(), self.casting():
            self.output = self.model(tokens)
            self.loss = self.output.float().square().mean()


def plain(loop: Loop, tokens: Any) -> None:
    """Do what most loops do."""
    loop.forward(tokens)
    loop.loss.backward()
    loop.update()
