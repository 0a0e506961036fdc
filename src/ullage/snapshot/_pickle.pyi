"""The compiled pickle machine: see bindings.cpp."""

from typing import Any

class PickleError(ValueError): ...

def read(data: bytes, /) -> dict[str, Any]: ...
