"""The compiled pickle machine: see bindings.cpp."""

from typing import Any

class PickleError(ValueError): ...

def read(data: bytes, /) -> dict[str, Any]: ...

class StackRow:
    """A stack where the tree has one: its row in the table of stacks."""

    row: int
