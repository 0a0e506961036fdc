"""The compiled core: see bindings.cpp."""

from typing import Any

from ullage.program import Column

def survey(op: Column, key: Column, size: Column, settings: int, routes: int, /) -> int: ...
def replay(
    op: Column,
    key: Column,
    size: Column,
    stream: Column,
    ids: int,
    routes: list[list[int]],
    settings: list[tuple[Any, ...]],
    total: int,
    others: int,
    placement: int,
    semantics: int,
    fraction: float,
    levels: bool,
    places: bool,
    calls: bool,
    stop_after_ooms: int,
    start: list[list[int]],
    recorded_addresses: list[int],
    /,
) -> dict[str, Any]: ...
