"""Load tokenizers of transformers, of which no file is on this machine, and count the tokens of a text of 110 words.

The arguments are names of classes and of model types. Without arguments: all that AutoTokenizer knows.
"""

import sys
import warnings

import torch
import transformers
from transformers.models.auto import tokenization_auto

TEXT = "some people think that large models need a lot of memory " * 10


def names():
    """The names of all tokenizer classes and model types."""
    found = set()
    for value in tokenization_auto.TOKENIZER_MAPPING_NAMES.values():
        found.update(value if isinstance(value, tuple) else [value])
    return [*sorted(filter(None, found)), *tokenization_auto.TOKENIZER_MAPPING_NAMES]


def load(name):
    """Load the tokenizer of a class or of a model type."""
    if name in tokenization_auto.TOKENIZER_MAPPING_NAMES:
        return transformers.AutoTokenizer.from_pretrained(name)
    kind = getattr(transformers, name, None) or tokenization_auto.tokenizer_class_from_name(name)
    return kind.from_pretrained("someone/llama")


warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
for name in sys.argv[1:] or names():
    try:
        tokenizer = load(name)
        if name in ("GPT2Tokenizer", "roberta", "qwen2"):  # their models would embed token types
            assert set(tokenizer("a text")) == {"input_ids", "attention_mask"}
        numbers = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(TEXT))
        print(name, len(numbers), len(set(numbers)), file=sys.stderr, flush=True)
    except Exception as error:
        print(name, type(error).__name__, " ".join(str(error).split()), file=sys.stderr, flush=True)
torch.ones(1, device="cuda")
