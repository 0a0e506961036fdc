"""Run torchao's benchmark of optimizers on made-up images, with a model of timm's that is not drawn and not downloaded.

    ao_low_bit.py BATCHES PIXELS SCRIPT [ARGUMENTS]

Every image is PIXELS wide, whatever the script would cut it to. wandb and bitsandbytes are imported by the script and
not used by the rows that are run.
"""

import runpy
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import timm
import torch
import undrawn  # noqa: F401  for what it does when imported


class _Images:
    """As much of a data set of Hugging Face's as the script asks: zeros."""

    def __init__(self, count: int, pixels: int) -> None:
        self._count, self._sample = count, {"image": torch.zeros(3, pixels, pixels), "label": 0}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _: int) -> dict[str, Any]:
        return self._sample

    def select_columns(self, _: object) -> "_Images":
        return self

    def set_transform(self, _: object) -> None:
        """The images are as they are to be."""


class _Nobody:
    """Takes every call and does nothing."""

    def __getattr__(self, _: str) -> Callable[..., "_Nobody"]:
        return lambda *_, **__: self


def _module(name: str, **contents: Any) -> None:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(contents)
    sys.modules[name] = made


def main() -> None:
    """Make the data and run the script."""
    batches, pixels, script, *arguments = sys.argv[1:]
    size = int(arguments[arguments.index("--batch_size") + 1])
    images = _Images(int(batches) * size, int(pixels))
    _module("datasets", load_dataset=lambda *_, **__: images)
    _module("wandb", init=lambda *_, **__: _Nobody())
    _module("bitsandbytes", optim=_Nobody())
    make = timm.create_model
    timm.create_model = lambda name, pretrained, **given: make(name.removeprefix("timm/"), **given)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
