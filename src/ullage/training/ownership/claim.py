"""Chooses which object is reported as the holder of a memory block, if several objects hold it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.optim import Optimizer

from ullage.training.ownership import attribute
from ullage.training.ownership.block import AllocatedBlocks
from ullage.training.ownership.contents import optimizer_contents, parts_of_weights
from ullage.training.ownership.graph import tangent_of
from ullage.training.ownership.held_in_cpp import address_in, tensors_of_script
from ullage.training.ownership.holding import HolderKind
from ullage.training.ownership.safe_inspection import instance_dict, is_of, name_of, table_of
from ullage.training.ownership.search import OwnerSearch, is_tensor
from ullage.training.ownership.storage import addresses

_RANK: Final = {kind: rank for rank, kind in enumerate(HolderKind)}
_KIND_IN_SCRIPT: Final = {"parameter": HolderKind.PARAMETER, "buffer": HolderKind.BUFFER}
# The `order` of a reference that is reported only if no other object holds the memory block.
_LAST_ORDER: Final = 9
# A dictionary with at least this many entries is reported as a single row.
_GROUPED_FROM_ENTRIES: Final = 32


@dataclass(slots=True)
class Claim:
    """A reference from an object to a memory block, which keeps the block allocated."""

    kind: HolderKind
    place: int
    """The index of the object in `Reach.objects`."""
    group: tuple[Any, ...]
    """A key for grouping. References with equal keys are reported as one row."""
    suffix: str = ""
    """The last part of the reported reference path, such as the name of an attribute."""
    order: int = 0
    """The rank among references of the same kind. ullage reports the reference with the lowest rank."""
    common: tuple[int, str] | None = None
    """The object that a report shows if one row combines several references, as (object index, end of the path)."""
    function: Any = None
    """The autograd function that saved the tensor for backward, or None."""


class Claims:
    """All references that keep memory blocks allocated."""

    def __init__(self, search: OwnerSearch, blocks: AllocatedBlocks) -> None:
        self._search = search
        self._blocks = blocks
        self._objects = search.reach.objects
        self._is_forward_mode = forward_ad._current_level >= 0
        self._anchors: dict[int, int | None] = {}
        # Maps the index of a parent object to two facts about its children: their kind as holders, and the container
        # that is reported as one row.
        self._kinds: dict[int, tuple[HolderKind, int | None]] = {}
        self._found: list[tuple[int, Claim]] = []

    def best(self) -> dict[int, Claim]:
        """Return the reference that ullage reports for each memory block, by block index.

        Blocks without a known reference are left out.
        """
        for what, claim_of in (
            ("module", self._claim_module),
            ("optimizer", self._claim_optimizer),
            ("tensor", self._claim_tensor),
            ("script", self._claim_script),
            ("storage", self._claim_storage),
            ("capsule", self._claim_capsule),
        ):
            for place in self._search.reach.found[what]:
                claim_of(place, self._objects[place])
        for kept in self._search.kept:
            self._claim_kept(kept.value, kept.start, kept.function)
        best: dict[int, tuple[tuple[bool, int, int, int], Claim]] = {}
        for row, claim in self._by_row():
            key = claim.order == _LAST_ORDER, _RANK[claim.kind], claim.order, claim.place
            if row >= 0 and (row not in best or key < best[row][0]):
                best[row] = key, claim
        return {row: claim for row, (_, claim) in best.items()}

    def every(self) -> dict[int, list[Claim]]:
        """Return all references to each memory block, by block index.

        The method `best` must be called first, because it collects the references.
        """
        found: dict[int, list[Claim]] = {}
        for row, claim in self._by_row():
            if row >= 0:
                found.setdefault(row, []).append(claim)
        return found

    def _by_row(self) -> Iterator[tuple[int, Claim]]:
        rows = self._blocks.rows_at([address for address, _ in self._found])
        return ((row, claim) for row, (_, claim) in zip(rows, self._found, strict=True))

    def _claim(self, found: list[int], claim: Claim) -> None:
        self._found += [(address, claim) for address in found]

    def _claim_tensor(self, place: int, tensor: Tensor) -> None:
        found = _addresses_of(tensor)
        if not found:
            return
        is_parameter = type(tensor) is not Tensor and is_of(tensor, (nn.Parameter,))
        self._claim(found, self._by_root(place, HolderKind.PARAMETER if is_parameter else None))
        if self._is_forward_mode and (tangent := tangent_of(tensor)) is not None:
            claim = self._by_root(place)
            claim.suffix = ", its tangent"
            claim.group = (*claim.group, "tangent")
            self._claim(_addresses_of(tangent), claim)
        self._claim_gradient(tensor, place, ("at", self._anchor_of(place) or place), ".grad", 1, (place, ".grad"))

    def _claim_gradient(
        self, tensor: Tensor, place: int, group: tuple[Any, ...], suffix: str, order: int, common: tuple[int, str]
    ) -> None:
        # Only leaf tensors and tensors with retain_grad() are considered. Reading the gradient of any other tensor
        # prints a warning.
        if attribute.IS_LEAF.__get__(tensor) or attribute.RETAINS_GRAD.__get__(tensor):
            gradient = attribute.GRAD.__get__(tensor)
            if gradient is not None:
                claim = Claim(HolderKind.GRADIENT, place, (HolderKind.GRADIENT, *group), suffix, order, common)
                self._claim(_addresses_of(gradient), claim)

    def _claim_storage(self, place: int, storage: torch.UntypedStorage) -> None:
        if storage.device.type == "cuda" and storage.nbytes():
            claim = self._by_root(place)
            if claim.kind in (HolderKind.RUNNING, HolderKind.GARBAGE):
                claim.order = _LAST_ORDER  # reading a tensor's storage has created this storage object
            self._claim([storage.data_ptr()], claim)

    def _claim_capsule(self, place: int, capsule: Any) -> None:
        address = address_in(capsule)
        if address is not None:
            self._claim([address], self._by_root(place))

    def _claim_script(self, place: int, script: Any) -> None:
        top = self._top_of(place)
        for what, name, tensor in tensors_of_script(script):
            kind = _KIND_IN_SCRIPT.get(what, self._by_root(place).kind)
            text = f" -> {name_of(type(self._objects[top]))}"
            suffix = f"{text}.{name}" if what in _KIND_IN_SCRIPT else f"{text}, {name}"
            claim = Claim(kind, top, (kind, top, what), suffix, 0, (top, f"{text}, {what}s"))
            self._claim(_addresses_of(tensor), claim)
            self._claim_gradient(tensor, top, (top,), f"{suffix}.grad", 0, (top, f"{text}, gradients"))

    def _claim_module(self, place: int, module: nn.Module) -> None:
        if not (tables := instance_dict(module)) or not (tables.get("_parameters") or tables.get("_buffers")):
            return
        top = self._top_of(place)
        text, common = f" -> {name_of(type(module))}", f" -> {name_of(type(self._objects[top]))}"
        for kind, table, many in (
            (HolderKind.PARAMETER, "_parameters", "parameters"),
            (HolderKind.BUFFER, "_buffers", "buffers"),
        ):
            for name, tensor in tensors_in_table(module, table):
                claim = Claim(kind, place, (kind, top), f"{text}.{name}", 0, (top, f"{common}, {many}"))
                self._claim(_addresses_of(tensor), claim)
                self._claim_gradient(tensor, place, (top,), f"{text}.{name}.grad", 0, (top, f"{common}, gradients"))
        for tensor in parts_of_weights(module):
            kind, many = HolderKind.PARAMETER, "parameters"
            claim = Claim(kind, place, (kind, top), f"{text}, parts of its weights", 0, (top, f"{common}, {many}"))
            self._claim(_addresses_of(tensor), claim)

    def _claim_optimizer(self, place: int, optimizer: Optimizer) -> None:
        name = name_of(type(optimizer))
        for attribute_name, key, tensor in optimizer_contents(optimizer):
            common = f" -> {name}.{attribute_name}"
            what = f" {key!r}" if type(key) is str else ""
            group = HolderKind.OPTIMIZER_STATE, place, attribute_name
            claim = Claim(HolderKind.OPTIMIZER_STATE, place, group, common + what, 0, (place, common))
            self._claim(_addresses_of(tensor), claim)

    def _claim_kept(self, tensor: Tensor, place: int, function: Any) -> None:
        group = "graph", self._anchor_of(place) or place
        claim = Claim(HolderKind.GRAPH, place, group, " -> grad_fn graph", 0, (place, " -> grad_fn graphs"), function)
        self._claim(_addresses_of(tensor), claim)
        suffix = " -> grad_fn graph, gradient"
        self._claim_gradient(tensor, place, group, suffix, 2, (place, suffix + "s"))

    def _by_root(self, place: int, kind: HolderKind | None = None) -> Claim:
        parent = self._search.reach.parents[place]
        if parent not in self._kinds or parent < 0:
            found = HolderKind.GRAPH if self._search.is_in_graph(place) else self._search.root_of(place).kind
            self._kinds[parent] = found, self._anchor_of(place)
        found, anchor = self._kinds[parent]
        if place in self._search.in_graphs:
            found = HolderKind.GRAPH
        kind = kind or found
        return Claim(kind, place, (kind, "at", anchor if anchor is not None else place), order=1)

    def _anchor_of(self, place: int) -> int | None:
        chain = []
        current = self._search.reach.parents[place]
        while current >= 0 and current not in self._anchors:
            chain.append(current)
            current = self._search.reach.parents[current]
        known = self._anchors[current] if current >= 0 else None
        for one in reversed(chain):
            if known is None and _is_grouped(self._objects[one]):
                known = one
            self._anchors[one] = known
        parent = self._search.reach.parents[place]
        return self._anchors[parent] if parent >= 0 else None

    def _top_of(self, place: int) -> int:
        chain = self._search.reach.chain_of(place)
        return next((one for one in chain if is_of(self._objects[one], (nn.Module,))), place)


def _is_grouped(one: Any) -> bool:
    if is_of(one, (list, tuple, set, frozenset, deque)):
        return True
    return is_of(one, (dict,)) and (
        dict.__len__(one) > _GROUPED_FROM_ENTRIES or any(type(key) is not str for key in dict.keys(one))
    )


def tensors_in_table(module: nn.Module, table: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors in a module's `_parameters` or `_buffers` dictionary."""
    for name, tensor in dict.items(table_of(module, table)):
        if is_tensor(tensor):
            yield name, tensor


def _addresses_of(tensor: Tensor) -> list[int]:
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        if not tensor.is_cuda:
            return []
        if tensor.layout is torch.strided and not tensor.is_nested:
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):  # a tensor of torch.func, which does not have a storage
                return addresses([tensor])
            return [storage.data_ptr()] if storage.nbytes() else []  # `data_ptr` of an empty storage may raise an error
    return addresses([tensor])
