"""Keep a model's initial random weights if the script loads a file that is missing.

The script gets a placeholder for the file's state dict. A model that loads it keeps its present weights.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.standing_in import around, stand_in, when_imported

_COUNTS: Final = frozenset({"epoch", "epochs", "step", "steps", "global_step", "iter", "iteration", "iterations"})


class MadeUpState(dict[str, Any]):
    """A placeholder for the state dict of a missing file. Its entries are placeholders or, for step counts, 0."""

    def __missing__(self, name: Any) -> Any:
        return 0 if name in _COUNTS else MadeUpState()

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the default if one is given, otherwise a placeholder for the missing entry."""
        return default if default is not None else self[name]


def install(note: Callable[[str], None]) -> None:
    """Replace missing state dicts by placeholders when the script uses torch, safetensors or timm."""
    said: set[str] = set()

    def load(original: Callable[..., Any], file: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(file, *arguments, **keywords)
        except OSError as error:
            if not isinstance(file, str | os.PathLike) or not is_not_there(error) or os.path.exists(file):
                raise
        name = os.fspath(file)
        if name not in said:
            said.add(name)
            note(
                f"generated: the file {name} is missing; models that load it keep their initial random values, and "
                "memory that loading itself would allocate is not counted"
            )
        return MadeUpState()

    def watch_torch(torch: Any) -> None:
        around(torch, "load", load)
        torch.serialization.load = torch.load
        around(torch.hub, "load_state_dict_from_url", load)
        around(torch.nn.Module, "load_state_dict", _load_into_module)
        around(torch.optim.Optimizer, "load_state_dict", _load_into_optimizer)

    when_imported("torch", watch_torch)
    stand_in("safetensors.torch", "load_file", load)

    def load_pretrained(original: Callable[..., Any], model: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            original(model, *arguments, **keywords)
        except OSError as error:
            if not is_not_there(error):
                raise
            parameters = sum(each.numel() for each in model.parameters())
            note(
                f"generated: the weights of timm's {type(model).__name__} ({parameters:,} parameters) are random "
                "initial values"
            )

    stand_in("timm.models._builder", "load_pretrained", load_pretrained)


def _load_into_module(original: Callable[..., Any], this: Any, state: Any, *arguments: Any, **keywords: Any) -> Any:
    return original(this, this.state_dict() if isinstance(state, MadeUpState) else state, *arguments, **keywords)


def _load_into_optimizer(original: Callable[..., Any], this: Any, state: Any, *arguments: Any, **keywords: Any) -> Any:
    return None if isinstance(state, MadeUpState) else original(this, state, *arguments, **keywords)
