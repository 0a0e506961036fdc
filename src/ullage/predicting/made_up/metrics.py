"""Generate a metric if the library `evaluate` does not find it. Its value is always 0."""

from collections.abc import Callable
from typing import Any

from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.standing_in import around, when_imported


class MadeUpMetric:
    """A metric that computes nothing. Metrics do not allocate GPU memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, **_: object) -> None:
        """Ignore a prediction."""

    def add_batch(self, **_: object) -> None:
        """Ignore a batch of predictions."""

    def compute(self, **_: object) -> dict[str, Any]:
        """Return 0 as the value of the metric, and of any other name that the script reads."""
        return _Zeros({self.name: 0.0})


class _Zeros(dict[str, Any]):
    def __missing__(self, name: str) -> float:
        return 0.0


def install(note: Callable[[str], None]) -> None:
    """Replace missing metrics when the script uses the library `evaluate`."""

    def load(original: Callable[..., Any], path: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(path, *arguments, **keywords)
        except Exception as error:
            if not is_not_there(error) and not isinstance(error.__cause__ or error.__context__, OSError):
                raise
        note(f"generated: the metric {path}, whose values are 0")
        return MadeUpMetric(str(path))

    def watch(library: Any) -> None:
        around(library, "load", load)
        library.loading.load = library.load

    when_imported("evaluate", watch)
