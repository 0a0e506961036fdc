"""Write the files of a generated tokenizer, and find out whether a tokenizer has a vocabulary.

The generated tokenizer splits an English text into about 1.6 tokens per word. Each word of the generated texts is one
token.
"""

import json
from functools import cache
from itertools import islice
from typing import Any, Final

from ullage.predicting.made_up.repository import CONFIGS, Config, MadeUpRepository, read_config

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS: Final = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
"""The special tokens of the generated tokenizer. The keys are argument names of transformers' tokenizers."""
_MARKS: Final = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "<|system|>", "<|user|>", "<|assistant|>")
_FIRST_PIECES: Final = ("the", "\u0120the")
_USUAL_SIZE: Final = 32_000
# A tokenizer without a vocabulary splits this text into nothing, into unknown tokens, or raises an error.
_PROBE: Final = "people know that most large models need more memory when their inputs become longer than before"


def has_vocabulary(tokenizer: Any) -> bool:
    """Return whether a tokenizer of transformers splits an English text into at least half as many different, known
    tokens as the text has words.
    """
    try:
        numbers = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(_PROBE))
        known = set(numbers) - {None, tokenizer.unk_token_id}
    except Exception:  # for a missing file, tokenizer classes raise different errors
        return False
    return len(known) >= len(_PROBE.split()) // 2


def vocabulary_size(config: Config) -> int:
    """Return the vocabulary size in the configuration of a model, or of its text model."""
    for part in (config, config.get("text_config"), config.get("decoder"), config.get("text_encoder")):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return _USUAL_SIZE


def write_tokenizer(made: MadeUpRepository) -> None:
    """Write a generated tokenizer: tokenizer.json and its configuration."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    size = vocabulary_size(made.config)
    words = [*_MARKS, *_FIRST_PIECES, *sorted(pre_tokenizers.ByteLevel.alphabet()), *_pieces()]
    words = list(islice(dict.fromkeys(words), size))  # a tiny vocabulary, in a test, lacks letters
    words += [f"<unused {number}>" for number in range(len(words), size)]
    # All scores are equal, so the model splits a word into as few pieces as possible.
    tokenizer: Any = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=_MARKS.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([word for word in _MARKS if word in words])
    tokenizer.save(f"{made.path}/tokenizer.json")
    longest = made.config.get("max_position_embeddings", made.config.get("n_positions"))
    made.write(
        "tokenizer_config.json",
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **SPECIAL_TOKENS,
                "chat_template": CHAT_TEMPLATE,
                **({"model_max_length": longest} if isinstance(longest, int) else {}),
            }
        ),
    )


@cache
def _pieces() -> list[str]:
    found = read_config(CONFIGS / "pieces.json")
    assert found is not None, "the file is a part of this package"
    return str(found["pieces"]).split()
