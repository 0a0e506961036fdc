"""Run a script of the parameter-golf competition as one rank of several, alone in its process, on made-up tokens.

    golf.py RANK WORLD_SIZE VOCABULARY VALIDATION_TOKENS SCRIPT [ARGUMENTS]

The files of tokens have the form that the script reads, and are all zeros: no figure depends on which tokens they are.
The tokenizer's model is not there; the script asks it only how many bytes a token stands for. It divides by how many
bytes it has counted on the card, which counts nothing: a float of zero is read as one. The run ends with the line of
peaks: what follows it (saving, and a validation that takes hours without a card) is in no figure of a log.
"""

import builtins
import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from ullage.predicting.prediction.ranks import lone_rank

_HEADER: Final = 256 * 4  # int32: a magic number, a version, how many tokens
_MAGIC: Final = 20240520
_TOKEN_BYTES: Final = 2
_TRAINING_TOKENS: Final = 100_000_000  # a shard of the real data has as many


class _Tokenizer:
    """As much of a sentencepiece processor as the scripts ask."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def vocab_size(self) -> int:
        return self._vocabulary

    def is_control(self, token: int) -> bool:
        return token == 0

    def is_unknown(self, token: int) -> bool:
        return False

    is_unused = is_byte = is_unknown

    def id_to_piece(self, token: int) -> str:
        return str(token)


def _write_tokens(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b"".join(number.to_bytes(4, "little") for number in (_MAGIC, 1, count))
    with path.open("wb") as file:
        file.write(header)
        os.truncate(file.fileno(), _HEADER + count * _TOKEN_BYTES)


def _end_after_peaks() -> None:
    shown = builtins.print

    def ending(*values: object, **options: object) -> None:
        shown(*values, **options)
        if values and str(values[0]).startswith("peak memory allocated:"):
            raise SystemExit(0)

    builtins.print = ending


def main() -> None:
    """Make the data, stand in for the other ranks, and run the script."""
    rank, world_size, vocabulary, validation_tokens = map(int, sys.argv[1:5])
    script = sys.argv[5]
    name = f"fineweb10B_sp{vocabulary}"
    data, tokenizer = Path("data/datasets") / name, Path("data/tokenizers") / f"fineweb_{vocabulary}_bpe.model"
    _write_tokens(data / "fineweb_train_000000.bin", _TRAINING_TOKENS)
    _write_tokens(data / "fineweb_val_000000.bin", validation_tokens + 1)  # of the last, only what follows is asked
    tokenizer.parent.mkdir(parents=True)
    tokenizer.touch()
    # The scripts put what nvidia-smi prints into their log.
    smi = Path("bin/nvidia-smi")
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    path = os.pathsep.join([str(smi.parent.resolve()), os.environ["PATH"]])
    os.environ |= {"DATA_PATH": str(data), "TOKENIZER_PATH": str(tokenizer), "PATH": path}
    stand_in = ModuleType("sentencepiece")
    stand_in.__spec__ = ModuleSpec("sentencepiece", None)
    stand_in.SentencePieceProcessor = lambda *_, **__: _Tokenizer(vocabulary)
    sys.modules["sentencepiece"] = stand_in
    lone_rank.announce(rank, world_size)
    import torch

    lone_rank.stand_in_for_the_others(torch)
    read = torch.Tensor.item

    def item(tensor: torch.Tensor) -> float:
        return (read(tensor) or 1.0) if tensor.is_floating_point() else read(tensor)

    torch.Tensor.item = item
    _end_after_peaks()
    sys.argv = sys.argv[5:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
