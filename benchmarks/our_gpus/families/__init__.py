"""The questions, one module or package per family; `plan.py` has their order.

Each module has three functions:

* `questions()` returns the family's `Question`s. It does not import torch.
* `answer(question, gpu)` measures one of them, in a process of its own, and returns JSON data.
* `compare(real, emulated)` takes two answers to the same question and returns the `Figure`s to compare.
* `analyse(real, attachments)`, which a family may have, returns further `Figure`s of the real GPU alone.

A module with `EMULATES_ITSELF = True` starts further processes, and gives each its GPU by `gpu.environment()`.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def pairs(what: str, real: Mapping[str, Any], emulated: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key with the values of both GPUs, so that nothing is left out of a comparison unnoticed.

    Raises:
        TypeError: one of the two has no keys.
        ValueError: they have different keys, or none.
    """
    if not (isinstance(real, Mapping) and isinstance(emulated, Mapping)):
        raise TypeError(f"{what} have no names: {type(real).__name__}, emulated {type(emulated).__name__}")
    if not real or real.keys() != emulated.keys():
        raise ValueError(f"{what} are not the same: {sorted(real)} on the real GPU, {sorted(emulated)} emulated")
    for name, value in real.items():
        yield name, value, emulated[name]
