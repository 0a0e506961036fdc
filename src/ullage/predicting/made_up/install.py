"""Stand in for what is not here, in the libraries that the script imports, and in no other."""

from collections.abc import Callable

from ullage.predicting.made_up import (
    datasets_library,
    diffusers_weights,
    pictures,
    processors,
    timm_weights,
    tokenizer,
    torch_files,
    transformers_weights,
)
from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData
from ullage.predicting.made_up.repository import MadeUpRepositories


def install(choice: MadeUpChoice, note: Callable[[str], None]) -> None:
    """Wait for the libraries that load weights and data.

    Args:
        choice: what may be made up.
        note: told in a sentence what was made up, once each.
    """
    if not choice.is_asked:
        return
    last = tokenizer.LastTokenizer()
    repositories = MadeUpRepositories(choice, note)
    tokenizer.install(repositories if choice.random_weights else None, last)
    if choice.random_weights:
        transformers_weights.install(repositories)
        processors.install(repositories)
        diffusers_weights.install(repositories)
        timm_weights.install(note)
        torch_files.install(note)
    if choice.data is not None:
        data = MadeUpData.parse(choice.data)
        datasets_library.install(choice, data, last, note)
        if data.form == "image":
            pictures.install(choice, data, repositories, note)
