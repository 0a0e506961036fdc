"""Generate a tokenizer in place of a missing one, with the vocabulary size of the model.

Each word of the generated texts is one token.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ullage.predicting.made_up.repository import Config, MadeUpRepositories, MadeUpRepository
from ullage.predicting.made_up.standing_in import stand_in, with_hint

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_SPECIAL: Final = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
_NAMED: Final = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
_ROLES: Final = ("<|system|>", "<|user|>", "<|assistant|>")
# These arguments of the missing tokenizer are passed to the generated one.
_KEPT: Final = ("padding_side", "truncation_side", "model_max_length")
_MERGES: Final = (("t", "h"), ("th", "e"), ("\u0120", "the"))
_BYTES: Final = 256


def install(repositories: MadeUpRepositories) -> None:
    """Install the hooks as soon as the script imports transformers' tokenizers.

    Without `random_weights`, the hooks only store the tokenizer that the script loads.
    """

    def from_pretrained(original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            tokenizer = original(cls, name, *arguments, **keywords)
        except Exception as error:  # for a missing file, some tokenizer classes raise their own errors
            is_asked = repositories.choice.random_weights
            if not is_asked or _has_files(cls, str(name), keywords.get("subfolder") or ""):
                raise
            made = _repository(repositories, str(name), keywords)
            if made is None:
                raise with_hint(error, repositories.unknown_text(str(name), "the tokenizer")) from error
            tokenizer = _loaded(repositories, made, str(name), keywords)
        repositories.last_tokenizer = tokenizer
        return tokenizer

    stand_in("transformers.tokenization_utils_base", "PreTrainedTokenizerBase.from_pretrained", from_pretrained)


# In a pipeline, the tokenizer belongs to the text encoder.
def _repository(repositories: MadeUpRepositories, name: str, keywords: dict[str, Any]) -> MadeUpRepository | None:
    subfolder = keywords.get("subfolder") or ""
    if "tokenizer" in subfolder:
        return repositories.repository(name, subfolder=subfolder.replace("tokenizer", "text_encoder"))
    if os.path.basename(name).startswith("tokenizer"):
        beside = os.path.join(os.path.dirname(name), os.path.basename(name).replace("tokenizer", "text_encoder"))
        if (made := repositories.repository(beside)) is not None:
            return made
    return repositories.repository(name, subfolder=subfolder)


def _loaded(repositories: MadeUpRepositories, made: MadeUpRepository, name: str, keywords: dict[str, Any]) -> Any:
    from transformers import PreTrainedTokenizerFast

    if "tokenizer" not in made.has:
        made.has.add("tokenizer")
        write_tokenizer(made)
        repositories.note(f"generated: the tokenizer of {name} (bytes, {vocabulary_size(made.config):,} words)")
    kept = {word: keywords[word] for word in _KEPT if word in keywords}
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(made.path, **kept)
    tokenizer.name_or_path = name
    return tokenizer


# If this machine has the files, loading failed for another reason.
def _has_files(cls: Any, name: str, subfolder: str) -> bool:
    from transformers.utils.hub import cached_file

    for file in {*cls.vocab_files_names.values(), "tokenizer.json"}:
        with suppress(OSError, ValueError):
            if cached_file(
                name,
                file,
                subfolder=subfolder,
                local_files_only=True,
                _raise_exceptions_for_missing_entries=False,
            ):
                return True
    return False


def vocabulary_size(config: Config) -> int:
    """Return the vocabulary size in the configuration of a model, or of its text model."""
    for part in (config, config.get("text_config"), config.get("decoder"), config.get("text_encoder")):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return _BYTES + len(_SPECIAL) + len(_ROLES) + len(_MERGES)


def write_tokenizer(made: MadeUpRepository) -> None:
    """Write a generated tokenizer: tokenizer.json and its configuration."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    size = vocabulary_size(made.config)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*_SPECIAL, *_ROLES, *letters, *("".join(pair) for pair in _MERGES)]
    tiny = size < len(words)  # a tiny configuration in a test: letters without a number are unknown tokens
    vocabulary = {word: number for number, word in enumerate(words[:size])}
    merges = [] if tiny else list(_MERGES)
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([word for word in (*_SPECIAL, *_ROLES) if word in vocabulary])
    tokenizer.save(f"{made.path}/tokenizer.json")
    longest = made.config.get("max_position_embeddings", made.config.get("n_positions"))
    made.write(
        "tokenizer_config.json",
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **_NAMED,
                "chat_template": CHAT_TEMPLATE,
                **({"model_max_length": longest} if isinstance(longest, int) else {}),
            }
        ),
    )
