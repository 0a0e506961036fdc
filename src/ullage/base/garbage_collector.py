"""Pause Python's garbage collector while a very large number of objects is created or examined."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch automatic garbage collection off within the context, and restore its previous state when the context
    ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
