"""timm: a model keeps its fresh weights where the pretrained ones are not here."""

from collections.abc import Callable
from typing import Any

from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.standing_in import stand_in


def install(note: Callable[[str], None]) -> None:
    """Be there when the script imports timm."""

    def load_pretrained(original: Callable[..., Any], model: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            original(model, *arguments, **keywords)
        except OSError as error:
            if not is_not_there(error):
                raise
            parameters = sum(each.numel() for each in model.parameters())
            note(f"made up: the weights of timm's {type(model).__name__} ({parameters:,} parameters) are fresh")

    stand_in("timm.models._builder", "load_pretrained", load_pretrained)
