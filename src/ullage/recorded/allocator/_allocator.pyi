"""The compiled core: see bindings.cpp."""

from typing import Any

from ullage.recorded.program import Column

def foretell(address: Column, size: Column, is_new: Column, placement: int, /) -> Column: ...
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
    ties: int,
    routes_capture: bool,
    fraction: float,
    levels: bool,
    places: bool,
    calls: bool,
    stop_after_ooms: int,
    start: list[list[int]],
    recorded_addresses: list[int],
    setup: int,
    /,
) -> dict[str, Any]: ...
