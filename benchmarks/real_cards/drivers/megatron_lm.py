"""Run one of Megatron-LM's functional tests as the last of its ranks, alone, on made-up tokens, for a few steps.

    megatron_lm.py SOURCE CONFIGURATION STEPS VOCABULARY WORLD_SIZE

The last rank is the one that writes what was published. The test's data and checkpoints are left out: no byte on the
card depends on which tokens they are. What it would write for TensorBoard is printed, one JSON object a line. Where a
sample begins in the made-up data is told by NumPy instead of by a module that would have to be compiled.
"""

import json
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import apex_stand_in
import numpy as np
import torch
import torch.utils.tensorboard
import yaml

from ullage.predicting.prediction.ranks import lone_rank

_SKIPPED: Final = 2  # steps in fp16
_LEFT_OUT: Final = (
    "--async-save",
    "--data-cache-path",
    "--data-path",
    "--load",
    "--merge-file",
    "--save",
    "--save-interval",
    "--tokenizer-type",
    "--use-persistent-ckpt-worker",
    "--vocab-file",
    "--vocab-size",
)
"""Of the test's arguments: what names its files."""


class _Writer:
    """Prints what is asked for instead of writing it for TensorBoard, and ends the process when it has all."""

    steps = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def add_scalar(self, name: str, value: float, step: int, *_: Any) -> None:
        if name.startswith("mem-"):
            print("@" + json.dumps({"name": name, "value": int(value), "step": int(step)}), flush=True)
        if step >= self.steps and name == "mem-max-allocated-bytes":
            os._exit(0)  # what follows is for other ranks and for files

    def add_text(self, *_: Any, **__: Any) -> None:
        pass

    add_scalars = flush = close = add_text


def arguments_of(configuration: dict[str, Any], vocabulary: int) -> list[str]:
    """Return the test's command line without its files."""
    found = []
    for name, value in configuration["MODEL_ARGS"].items():
        if name in _LEFT_OUT or value is False:
            continue
        text = str(value)
        found += [name] if value is True else [name, *(text[1:-1].split() if text.startswith("[") else [text])]
    given = {"--tensorboard-dir": "tensorboard", "--vocab-size": vocabulary - 1}
    found += [str(part) for pair in given.items() for part in pair]
    return [*found, "--mock-data", "--tokenizer-type", "NullTokenizer"]


def _starts_of_samples(
    sizes: np.ndarray,
    documents: np.ndarray,
    length: int,
    epochs: int,
    tokens_of_an_epoch: int,
    drops_last: bool = True,  # noqa: FBT001, FBT002 (as it is called)
    extra: int = 1,
) -> np.ndarray:
    """Return the document, and the place in it, that every sample begins with."""
    ends = np.cumsum(sizes[documents], dtype=np.int64)
    starts = np.arange(0, epochs * tokens_of_an_epoch - int(extra) + 1, length, dtype=np.int64)
    places = np.searchsorted(ends, starts, side="right").clip(max=len(ends) - 1)
    return np.stack([places, starts - (ends - sizes[documents])[places]], axis=1).astype(np.int32)


def _train_in_any_case() -> None:
    """Do what the rank with the data would tell the others to do: to train."""
    training = import_module("megatron.training.training")
    build = training.build_train_valid_test_data_loaders

    def built(*given: Any) -> Any:
        loaders = build(*given)
        training.get_args().do_train = 1
        return loaders

    training.build_train_valid_test_data_loaders = built


def _overflow_at_first() -> None:
    """Skip steps as a loss scale does that begins too high: no gradient overflows on a card that computes nothing."""
    optimizer = import_module("megatron.core.optimizer.optimizer").MixedPrecisionOptimizer
    check = optimizer._unscale_main_grads_and_check_for_nan
    left = [_SKIPPED]

    def checked(self: Any) -> bool:
        found = check(self)
        left[0] -= 1
        return found or left[0] >= 0

    optimizer._unscale_main_grads_and_check_for_nan = checked


def main() -> None:
    """Be the last rank and run the script."""
    source, path, steps, vocabulary, world_size = sys.argv[1:]
    configuration = yaml.safe_load(Path(path).read_text())
    os.environ |= {name: str(value) for name, value in configuration.get("ENV_VARS", {}).items()}
    lone_rank.announce(int(world_size) - 1, int(world_size))
    lone_rank.stand_in_for_the_others(torch)
    if "uninstall -y Apex" not in configuration.get("BEFORE_SCRIPT", ""):
        apex_stand_in.install()
    helpers = ModuleType("megatron.core.datasets.helpers_cpp")
    helpers.build_sample_idx_int32 = helpers.build_sample_idx_int64 = _starts_of_samples
    sys.modules[helpers.__name__] = helpers
    torch.utils.tensorboard.SummaryWriter = _Writer
    _Writer.steps = int(steps)
    sys.path[0] = source
    _train_in_any_case()
    if configuration["MODEL_ARGS"].get("--fp16"):
        _overflow_at_first()
    script = str(Path(source) / "pretrain_gpt.py")
    sys.argv = [script, *arguments_of(configuration, int(vocabulary))]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
