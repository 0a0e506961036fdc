"""Mixed precision by the argument of a library whose loop it is: transformers, Lightning, accelerate."""

from typing import TYPE_CHECKING, Any, Final

from ullage.predicting.changes.training.library_calls import watch_calls

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop

_TRANSFORMERS: Final = {"bfloat16": "bf16", "float16": "fp16"}
_LIGHTNING: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
_ACCELERATE: Final = {"bfloat16": "bf16", "float16": "fp16"}


def keyword_of(library: str, setting: str) -> tuple[str, str]:
    """Return the argument that a library's call is given, and its value as Python writes it."""
    if library == "transformers":
        return _TRANSFORMERS[setting], "True"
    if library == "lightning":
        return "precision", f'"{_LIGHTNING[setting]}"'
    return "mixed_precision", f'"{_ACCELERATE[setting]}"'


class PrecisionArgument:
    """Gives the library's call its argument, where the script makes such a call."""

    def __init__(self, loop: "TrainingLoop", text: str, setting: str) -> None:
        self.is_passed = False
        """Whether a library got it, and sees to autocast itself."""
        self._loop = loop
        self._text = text
        self._setting = setting

    def install(self) -> None:
        """Wait for the call."""
        watch_calls("transformers", self._transformers)
        watch_calls("lightning", lambda made, keywords: self._keyword("precision", _LIGHTNING, keywords))
        watch_calls("accelerate", lambda made, keywords: self._keyword("mixed_precision", _ACCELERATE, keywords))

    def _transformers(self, arguments: Any, keywords: dict[str, Any]) -> None:
        if arguments.bf16 or arguments.fp16:
            self._loop.refuse(self._text, "the script passes bf16 or fp16 to TrainingArguments itself")
            return
        setattr(arguments, _TRANSFORMERS[self._setting], True)
        self._note()

    def _keyword(self, name: str, values: dict[str, str], keywords: dict[str, Any]) -> None:
        if keywords.get(name) is not None:
            self._loop.refuse(self._text, f"the script passes {name} itself")
            return
        keywords[name] = values[self._setting]
        self._note()

    def _note(self) -> None:
        self.is_passed = True
        self._loop.effects[self._text] += 1
