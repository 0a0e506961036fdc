"""Stand in for what is not here, in the libraries that the script imports, and in no other."""

from collections.abc import Callable

from ullage.made_up import tokenizer, transformers_weights
from ullage.made_up.choice import MadeUpChoice
from ullage.made_up.repository import MadeUpRepositories


def install(choice: MadeUpChoice, note: Callable[[str], None]) -> None:
    """Wait for the libraries that load weights and data.

    Args:
        choice: what may be made up.
        note: told in a sentence what was made up, once each.
    """
    last = tokenizer.LastTokenizer()
    repositories = MadeUpRepositories(choice, note) if choice.random_weights else None
    tokenizer.install(repositories, last)
    if repositories is not None:
        transformers_weights.install(repositories)
