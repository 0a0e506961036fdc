"""Finds all variables that keep a memory block allocated."""

import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ullage.training.ownership.block import live_blocks
from ullage.training.ownership.claim import Claim, Claims
from ullage.training.ownership.holding import HolderKind
from ullage.training.ownership.path import label_of
from ullage.training.ownership.root import Root, roots_of_user
from ullage.training.ownership.safe_inspection import instance_dict, is_of, name_of
from ullage.training.ownership.search import OwnerSearch, owner_search

_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque, types.CellType)
# The search from an object back to a variable passes at most this many nested containers.
_MOST_STEPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHolder:
    """The variables and objects that keep one memory block allocated."""

    kind: HolderKind
    path: str
    """The path from a variable to the object that holds the block, such as "losses -> list[*]"."""
    variable: str
    """The name of the variable through which the block is held, or an empty string."""
    file: str
    function: str
    in_traceback: bool
    """Whether the block is held through the traceback of an exception."""
    others: tuple[str, ...]
    """The names of other variables and attributes that keep the block allocated."""


def holders_at(addresses: Iterable[int], *, rest_bytes: int = 0) -> dict[int, BlockHolder]:
    """Return the variables that hold the memory blocks at these addresses. The keys are the addresses.

    Nothing is freed or kept alive, and none of the user's code is run.

    Args:
        addresses: the start addresses of the blocks.
        rest_bytes: the search ends after the user's variables if the blocks without a holder are at most this large.
    """
    blocks = live_blocks().beginning_at(addresses)
    if not len(blocks):
        return {}
    with owner_search() as search:
        for follow in (search.follow_user, search.follow_libraries, search.follow_rest):
            follow()
            all_claims = Claims(search, blocks)
            claims = all_claims.best()
            if sum(blocks[row].size_bytes for row in range(len(blocks)) if row not in claims) <= rest_bytes:
                break
        every = all_claims.every()
        groups: dict[tuple[HolderKind, str], list[int]] = {}
        for row, claim in claims.items():
            path = search.path_to(claim.place, is_general=True) + claim.suffix
            groups.setdefault((claim.kind, path), []).append(row)
        backwards = _Backwards(search)
        found: dict[int, BlockHolder] = {}
        for (_, path), rows in groups.items():
            largest = max(rows, key=lambda row: blocks[row].size_bytes)
            claim = claims[largest]
            others = backwards.names_of(every.get(largest, [claim]), claim)
            holder = _holder_of(search, claim, path, others)
            found.update((blocks[row].address, holder) for row in rows)
        return found


def _holder_of(search: OwnerSearch, claim: Claim, path: str, others: tuple[str, ...]) -> BlockHolder:
    chain, root = search.reach.chain_of(claim.place), search.root_of(claim.place)
    name = root.variable + path.removeprefix(root.text) if root.variable else path
    return BlockHolder(
        kind=claim.kind,
        path=name,
        variable=root.variable,
        file=root.file,
        function=root.function,
        in_traceback=any(is_of(search.reach.objects[one], (types.TracebackType,)) for one in chain),
        others=tuple(one for one in others if one != name),
    )


class _Backwards:
    def __init__(self, search: OwnerSearch) -> None:
        self._search = search
        self._roots: dict[int, list[Root]] = {}
        for root in roots_of_user():
            self._roots.setdefault(id(root.value), []).append(root)

    def names_of(self, claims: Iterable[Claim], best: Claim) -> tuple[str, ...]:
        objects, reach = self._search.reach.objects, self._search.reach
        main = {id(objects[place]) for place in reach.chain_of(best.place)}
        first = self._search.root_of(best.place).text
        found: dict[str, None] = {}
        for claim in claims:
            found |= dict.fromkeys(self._climb(objects[claim.place], claim.suffix, main, first))
        return tuple(found)

    def _climb(self, one: Any, suffix: str, main: set[int], first: str) -> Iterator[str]:
        level, seen = [(one, None, suffix)], {id(one)}
        for _ in range(_MOST_STEPS):
            following: list[tuple[Any, Any, str]] = []
            for child, grandchild, path in level:
                for root in self._roots.get(id(child), ()):
                    if root.text != first and root.variable:
                        yield root.variable + path
                for parent in self._parents_of(child):
                    if id(parent) in seen:
                        continue
                    seen.add(id(parent))
                    if is_of(parent, (types.FunctionType,)):
                        continue  # a closure: its variable is also a variable of the enclosing function
                    if instance_dict(parent) is child:  # `child` is the `__dict__` of `parent`
                        if id(parent) not in main:
                            yield name_of(type(parent)) + (label_of(parent, grandchild, is_general=True) or "") + suffix
                    elif is_of(parent, _CONTAINERS):
                        following.append((parent, child, _joined(parent, child) + path))
                    elif id(parent) not in main and (label := label_of(parent, child, is_general=True)):
                        yield (name_of(type(parent)) if label[:1] in ".[" else "") + label + path
            level = following

    def _parents_of(self, child: Any) -> list[Any]:
        search = self._search
        return [
            one
            for one in gc.get_referrers(child)
            if search.reach.has(one) and id(one) not in search.closed and type(one) is not Root
        ]


def _joined(parent: Any, child: Any) -> str:
    if is_of(parent, (types.CellType,)):
        return ""
    return f" -> {name_of(type(parent))}{label_of(parent, child, is_general=True) or ''}"
