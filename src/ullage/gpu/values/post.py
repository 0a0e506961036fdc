"""The ways on which messages go from rank to rank: the store in which ranks that run have met, or none."""

import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.01
_END: Final = "ullage/ended/{}"


class Post(Protocol):
    """What carries messages from rank to rank."""

    is_alone: bool
    """Whether this rank runs alone in its process."""
    largest_team: int
    """The largest group whose ranks tell each other what they gather, sum or exchange; in a larger one every rank takes
    its own for what the others have."""

    def send(self, key: str, value: bytes) -> None:
        """Leave a message for whoever asks for it."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a rank's message, and return it; None if it will not come."""


class StorePost:
    """Ranks that all run: their messages go through the store in which they have met."""

    is_alone = False
    largest_team = sys.maxsize

    def __init__(self) -> None:
        self.without: Callable[[], None] = lambda: None
        """Called where a message will not come because its sender has ended."""

    def send(self, key: str, value: bytes) -> None:
        """Leave a message in the store."""
        _store().set(key, value)

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message in the store, as long as its sender has not ended; None after a minute."""
        store = _store()
        latest = time.monotonic() + _PATIENCE_SECONDS
        while not store.check([key]):
            if store.check([_END.format(source)]) and not store.check([key]):
                self.without()
                return None
            if time.monotonic() > latest:
                return None
            time.sleep(_PAUSE_SECONDS)
        return bytes(store.get(key))

    def end(self) -> None:
        """Say that this rank sends nothing more."""
        _store().set(_END.format(torch.distributed.get_rank()), b"ended")


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


class NoPost:
    """A rank that runs alone, and of which nobody knows the others."""

    is_alone = True
    largest_team = 0

    def send(self, key: str, value: bytes) -> None:
        """Do nothing: nobody asks for it."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Return None: no message comes."""
