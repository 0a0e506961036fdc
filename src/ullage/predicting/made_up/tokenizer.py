"""Generate a tokenizer in place of a missing one, with the vocabulary size of the model."""

# transformers 5 loads a tokenizer without a vocabulary if it does not find the files: `_from_pretrained` of
# PreTrainedTokenizerBase passes None in place of each file, and most classes then take a default vocabulary of special
# tokens. Older versions raise an error. A tokenizer that was loaded, but has no vocabulary, is therefore missing too.

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ullage.base.errors import quoted
from ullage.predicting.made_up.repository import MadeUpRepositories, MadeUpRepository
from ullage.predicting.made_up.standing_in import stand_in, with_hint
from ullage.predicting.made_up.vocabulary import SPECIAL_TOKENS, has_vocabulary, vocabulary_size, write_tokenizer

# These arguments of the missing tokenizer are passed to the generated one.
_KEPT: Final = frozenset({"padding_side", "truncation_side", "model_max_length", *SPECIAL_TOKENS})
# Files that contain a vocabulary, although a class of transformers may not list them in `vocab_files_names`.
_FILES: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")
# The classes of mistral-common do not call the method of their base class. Both names exist: the first since
# transformers 5.0, the second before.
_LOADERS: Final = (
    ("transformers.models.auto.tokenization_auto", "AutoTokenizer"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
    ("transformers.tokenization_mistral_common", "MistralCommonBackend"),
    ("transformers.tokenization_mistral_common", "MistralCommonTokenizer"),
)


def install(repositories: MadeUpRepositories) -> None:
    """Install the hooks as soon as the script imports transformers' tokenizers.

    Without `random_weights`, the hooks store the tokenizer that the script loads, and raise OSError if the tokenizer
    has no vocabulary because its files are missing.
    """
    load = _Tokenizers(repositories)
    for module, name in _LOADERS:
        stand_in(module, f"{name}.from_pretrained", load)


class _Tokenizers:
    def __init__(self, repositories: MadeUpRepositories) -> None:
        self._repositories = repositories

    def __call__(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            tokenizer = original(cls, name, *arguments, **keywords)
        except Exception as raised:  # for a missing file, tokenizer classes raise different errors
            tokenizer = self._instead(cls, str(name), keywords, raised)
        else:
            if tokenizer is not self._repositories.last_tokenizer and _is_empty(tokenizer, str(name), keywords):
                error = OSError(f"the tokenizer of {quoted(name)} is empty: its files are not on this machine")
                hint = "--random-weights generates the tokenizer from the model's configuration"
                tokenizer = self._instead(cls, str(name), keywords, with_hint(error, hint))
        self._repositories.last_tokenizer = tokenizer
        return tokenizer

    def _instead(self, cls: Any, name: str, keywords: dict[str, Any], error: BaseException) -> Any:
        if not self._repositories.choice.random_weights or _has_files(cls, name, keywords):
            raise error
        made = self._repository(name, keywords.get("subfolder") or "")
        if made is None:
            raise with_hint(error, self._repositories.unknown_text(name, "the tokenizer")) from error
        return self._loaded(made, cls, name, keywords)

    # In a pipeline, the tokenizer belongs to the text encoder.
    def _repository(self, name: str, subfolder: str) -> MadeUpRepository | None:
        find = self._repositories.repository
        if "tokenizer" in subfolder:
            return find(name, subfolder=subfolder.replace("tokenizer", "text_encoder")) or find(name)
        if os.path.basename(name).startswith("tokenizer"):
            encoder = os.path.join(os.path.dirname(name), os.path.basename(name).replace("tokenizer", "text_encoder"))
            if (made := find(encoder)) is not None:
                return made
        return find(name, subfolder=subfolder)

    def _loaded(self, made: MadeUpRepository, cls: Any, name: str, keywords: dict[str, Any]) -> Any:
        from transformers import PreTrainedTokenizerFast

        if "tokenizer" not in made.has:
            made.has.add("tokenizer")
            write_tokenizer(made)
            self._repositories.note(
                f"generated: the tokenizer of {name} ({vocabulary_size(made.config):,} tokens); the script's own texts "
                "get about as many tokens as from the real tokenizer, not exactly as many"
            )
        kept = {word: value for word, value in keywords.items() if word in _KEPT}
        # A model's own class decides whether a batch has token types. Repositories of other classes have none.
        is_of_model = ".models." in cls.__module__ and hasattr(cls, "model_input_names")
        kept["model_input_names"] = cls.model_input_names if is_of_model else ["input_ids", "attention_mask"]
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(made.path, **kept)
        tokenizer.name_or_path = name
        return tokenizer


def _is_empty(tokenizer: Any, name: str, keywords: dict[str, Any]) -> bool:
    if tokenizer is False:  # transformers 4.57, if SentencePiece cannot load a file
        return True
    if not getattr(type(tokenizer), "vocab_files_names", None):  # the tokens are bytes, or parts were loaded before
        return False
    return not _has_files(type(tokenizer), name, keywords) and not has_vocabulary(tokenizer)


# If this machine has a file of the vocabulary, a failure has another reason.
def _has_files(cls: Any, name: str, keywords: dict[str, Any]) -> bool:
    from transformers.utils.hub import cached_file

    if os.path.isfile(name):  # a single file with a vocabulary
        return True
    for file in {*getattr(cls, "vocab_files_names", {}).values(), *_FILES}:
        with suppress(OSError, ValueError):
            if cached_file(
                name,
                file,
                subfolder=keywords.get("subfolder") or "",
                cache_dir=keywords.get("cache_dir"),
                revision=keywords.get("revision"),
                local_files_only=True,
                _raise_exceptions_for_missing_entries=False,
            ):
                return True
    return False
