"""Run torchtitan's training script as one rank of many, alone in its process, on made-up tokens.

    titan_train.py WORLD_SIZE SOURCE CONFIGURATION [OPTIONS]

The tokenizer is asked only how many words there are, and the data set for sequences of the length that is trained: no
byte on the card depends on which tokens they are. What the script would write for TensorBoard of the most that was
reserved is printed, with its step. It is rank 0, unless `ullage predict` has said which.
"""

import importlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch

from ullage.predicting.prediction.ranks import lone_rank

_WORDS: Final = 128256  # of Llama 3.1's tokenizer
_RESERVED: Final = "memory/max_reserved(GiB)"
_GIB: Final = 2**30


class _Batches:
    """Sequences of zeros, and what the script asks of a loader beside."""

    def __init__(self, size: int, length: int) -> None:
        self._size, self._length = size, length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            tokens = torch.zeros(self._size, self._length, dtype=torch.int64)
            yield tokens, tokens.clone()


class _Writer:
    """Prints the figure that was published."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if name == _RESERVED:
            print(f"@{step} {round(value * _GIB)}", flush=True)

    def close(self) -> None:
        pass


def main() -> None:
    """Replace what reads files and run the script."""
    world_size, source, *arguments = sys.argv[1:]
    if "RANK" not in os.environ:
        lone_rank.announce(0, int(world_size))
        lone_rank.stand_in_for_the_others(torch)
    data = ModuleType("torchtitan.datasets")
    data.build_tokenizer = lambda *_: SimpleNamespace(n_words=_WORDS)
    data.build_hf_data_loader = lambda _name, _path, _tokenizer, size, length, *_: _Batches(size, length)
    boards = ModuleType("torch.utils.tensorboard")
    boards.SummaryWriter = _Writer
    sys.modules |= {module.__name__: module for module in (data, boards)}
    script = Path(source) / "train.py"
    sys.path[0] = source
    sys.argv = [str(script), "--job.config_file", str(Path(source) / arguments[0]), *arguments[1:]]
    metrics = importlib.import_module("torchtitan.metrics")
    metrics._get_metrics_rank = lambda *_: int(os.environ["RANK"])  # each says what it has reserved
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
