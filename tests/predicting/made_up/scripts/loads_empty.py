"""Load a tokenizer of a class that loads without its files, as most classes of transformers 5 do."""

import sys
from typing import ClassVar

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


class Hollow(PreTrainedTokenizerFast):
    """With a vocabulary of special tokens alone if there is no file."""

    vocab_files_names: ClassVar = {"vocab_file": "vocab.json"}

    def __init__(self, vocab_file=None, **keywords):
        words = {"<unk>": 0} if sys.argv[1] == "unknown" else {}
        model = models.WordLevel(words, unk_token="<unk>") if words else models.BPE()
        keywords |= {"tokenizer_object": Tokenizer(model), "unk_token": "<unk>"}
        super().__init__(**keywords)


tokenizer = Hollow.from_pretrained("model")
assert len(tokenizer("a row of plain words " * 100)["input_ids"]) in range(490, 700)
torch.ones(1, device="cuda")
