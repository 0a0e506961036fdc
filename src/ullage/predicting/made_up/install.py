"""Install the hooks that generate missing weights and data."""

from collections.abc import Callable

from ullage.predicting.made_up import (
    datasets_library,
    diffusers_weights,
    fresh_weights,
    pictures,
    tokenizer,
    transformers_library,
)
from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData
from ullage.predicting.made_up.repository import MadeUpRepositories


def install(choice: MadeUpChoice, note: Callable[[str], None]) -> None:
    """Install the hooks that generate missing weights and data, for each library when the script imports it.

    Args:
        choice: the weights and data that may be generated.
        note: a function that is called once with a sentence about each object that was generated.
    """
    if not choice.is_asked:
        return
    repositories = MadeUpRepositories(choice, note)
    tokenizer.install(repositories)
    if choice.random_weights:
        transformers_library.install(repositories)
        diffusers_weights.install(repositories)
        fresh_weights.install(note)
    if choice.data is not None:
        data = MadeUpData.parse(choice.data)
        datasets_library.install(repositories, data)
        if data.form == "image":
            pictures.install(repositories, data)
