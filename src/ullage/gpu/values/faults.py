"""Keep errors of ullage itself away from the script whose tensor values ullage tracks.

Such an error makes values unknown, and the prediction reports it. It never ends the script, because the script did
nothing wrong.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_MOST_FAULTS: Final = 20
_MOST_CHARACTERS: Final = 200
_OF_SCRIPT: Final = "_ullage_is_of_script"
# The number of Python frames that ullage needs to go on after a script has used up the recursion limit.
_OWN_FRAMES: Final = 200


class Faults:
    """Collects the errors of ullage itself while it tracks tensor values."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}
        """Maps each operator or event during which ullage failed to the first line of the error."""
        self.on_fault: Callable[[], None] = lambda: None
        """A function that is called after each error; it makes everything unknown that the error may have affected."""

    @staticmethod
    def give_to_script(error: Exception) -> None:
        """Mark an error as one that the script would get on a real GPU, too."""
        setattr(error, _OF_SCRIPT, True)

    @staticmethod
    def is_of_script(error: Exception) -> bool:
        """Return whether `give_to_script` has marked an error."""
        return hasattr(error, _OF_SCRIPT)

    def note(self, place: str, error: Exception) -> None:
        """Store the first error of an operator or event."""
        if len(self.by_place) < _MOST_FAULTS:
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:_MOST_CHARACTERS]
            self.by_place.setdefault(place, text)

    @contextmanager
    def kept(self, place: str) -> Iterator[None]:
        """Store an error that ullage's own code raises in this context, and make all tensor values unknown."""
        try:
            yield
        except Exception as error:
            if self.is_of_script(error):
                raise
            self.note(place, error)
            self.on_fault()

    def keeping(self, place: str, function: Callable[..., Any]) -> Callable[..., None]:
        """Return a function that calls `function` and stores its errors."""

        @functools.wraps(function)
        def kept(*arguments: Any, **keywords: Any) -> None:
            with self.kept(place):
                function(*arguments, **keywords)

        return kept


@contextmanager
def deeper_stack(error: Exception) -> Iterator[None]:
    """Allow more Python frames in this context if an error says that the recursion limit is reached."""
    if not isinstance(error, RecursionError):
        yield
        return
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _OWN_FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
