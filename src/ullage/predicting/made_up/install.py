"""Install the hooks that generate missing weights and data."""

from collections.abc import Callable

from ullage.predicting.made_up import (
    annotated_pictures,
    datasets_library,
    diffusers_weights,
    fresh_weights,
    metrics,
    offline,
    pictures,
    tokenizer,
    transformers_library,
)
from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData
from ullage.predicting.made_up.missing import remember_given
from ullage.predicting.made_up.repository import MadeUpRepositories


def install(choice: MadeUpChoice, note: Callable[[str], None]) -> None:
    """Install the hooks that generate missing weights and data, for each library when the script imports it.

    Args:
        choice: the weights and data that may be generated.
        note: a function that is called once with a sentence about each object that was generated.
    """
    given = {"--random-weights": choice.random_weights, "--made-up-data": choice.data is not None}
    remember_given({option for option, is_given in given.items() if is_given})
    repositories = MadeUpRepositories(choice, note)
    offline.install(note)
    tokenizer.install(repositories)  # without an option, too: it refuses tokenizers that load without their files
    if choice.random_weights:
        transformers_library.install(repositories)
        diffusers_weights.install(repositories)
        fresh_weights.install(note)
    if choice.data is not None:
        data = MadeUpData.parse(choice.data)
        datasets_library.install(repositories, data)
        metrics.install(note)
        if data.form == "image":
            pictures.install(repositories, data)
            annotated_pictures.install(repositories, data)
