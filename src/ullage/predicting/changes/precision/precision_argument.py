"""Mixed precision by the argument of a library whose loop it is: transformers, Lightning, accelerate."""

import functools
from typing import Any, Final

from ullage.predicting.changes.change import AppliedChange
from ullage.predicting.changes.training.library_calls import watch_calls

_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16"}
_KEYWORDS: Final = {
    "lightning": ("precision", {"bfloat16": "bf16-mixed", "float16": "16-mixed"}),
    "accelerate": ("mixed_precision", _SHORT),
}


def keyword_of(library: str, setting: str) -> tuple[str, str]:
    """Return the argument that a library's call is given, and its value as Python writes it."""
    if library == "transformers":
        return _SHORT[setting], "True"
    name, values = _KEYWORDS[library]
    return name, f'"{values[setting]}"'


class PrecisionArgument:
    """Gives the library's call its argument, where the script makes such a call."""

    def __init__(self, applied: AppliedChange) -> None:
        """Wait for the call."""
        self.is_passed = False
        """Whether a library got it, and sees to autocast itself."""
        self._applied = applied
        watch_calls("transformers", self._transformers)
        for library, (name, values) in _KEYWORDS.items():
            watch_calls(library, functools.partial(self._keyword, name, values[applied.setting]))

    def _transformers(self, arguments: Any, keywords: dict[str, Any]) -> None:
        if arguments.bf16 or arguments.fp16:
            self._applied.refuse("the script passes bf16 or fp16 to TrainingArguments itself")
            return
        setattr(arguments, _SHORT[self._applied.setting], True)
        self._note()

    def _keyword(self, name: str, value: str, made: object, keywords: dict[str, Any]) -> None:
        if keywords.get(name) is not None:
            self._applied.refuse(f"the script passes {name} itself")
            return
        keywords[name] = value
        self._note()

    def _note(self) -> None:
        self.is_passed = True
        self._applied.took_effect()
