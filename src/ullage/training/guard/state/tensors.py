"""Records tensors, detects writes to them, and undoes the writes.

A tensor's version counter shows whether it was written. Buffers and small tensors are copied before each attempt, other
tensors only after the first write to them. A write through `.data` does not change the version counter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from ullage.training.guard.state.copies import (
    FIRST_BYTES,
    SMALL_BYTES,
    addresses_of,
    can_be_copied,
    digest_of,
    is_equal,
    is_plain_tensor,
    place_of,
    put_back,
    version_of,
    versions_of,
)

_FIRST_STEPS: Final = 8
_EVERY: Final = 16


class Kind(Enum):
    """What a tensor is to the model. This decides whether it is copied before each attempt."""

    BUFFER = auto()
    """Copied, because BatchNorm writes its statistics without changing the version counter."""
    TABLE = auto()
    """A buffer of integers, or one that checkpoints do not hold: copied until a step shows that it does not change."""
    TRAINED = auto()
    """A parameter that an optimizer updates: copied after the first write in forward."""
    FROZEN = auto()
    """A parameter that no optimizer updates, such as a momentum encoder's: copied in the first step too."""
    OTHER = auto()
    """Copied if it is small."""
    OF_BATCH = auto()
    """Never copied."""


@dataclass(slots=True)
class Learned:
    """What earlier steps have shown about tensors. Tensors are known by their names."""

    written: set[str] = field(default_factory=set)
    """The tensors that attempts write. They are copied even if they are large."""
    constant: set[str] = field(default_factory=set)
    """The large tables that attempts do not write. They are not copied."""
    steps: int = 0
    """The number of successful attempts."""
    is_first: bool = True
    """Whether no step has succeeded yet. Until then, frozen parameters are copied, or checksums are recorded."""


@dataclass(slots=True)
class _Record:
    name: str
    tensor: torch.Tensor
    kind: Kind
    is_ignored: bool
    is_lazy: bool
    version: int = 0
    place: tuple[Any, ...] = ()
    is_copied: bool = True
    copy: torch.Tensor | None = None
    digest: tuple[int, ...] | None = None

    def is_same(self) -> bool:
        if self.is_lazy:
            return is_lazy(self.tensor)
        if self.copy is not None:
            return is_equal(self.tensor, self.copy)
        if version_of(self.tensor) != self.version or (self.place and place_of(self.tensor) != self.place):
            return False
        return self.digest is None or digest_of(self.tensor) == self.digest


class Tensors:
    """A record of tensors. Make a new one if it is outdated."""

    def __init__(self, learned: Learned, spare: Sequence[torch.Tensor] = ()) -> None:
        """Create an empty record.

        Args:
            learned: what earlier steps have shown about tensors.
            spare: copies of a record that is no longer needed. Their memory is used again.
        """
        self._learned = learned
        self._spare: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        for copy in spare:
            self._spare.setdefault(_form(copy), []).append(copy)
        # Of trained parameters that no attempt has written, only the version counters are read.
        self._trained: list[torch.Tensor] = []
        self._names: list[str] = []
        self._records: list[_Record] = []
        self._watched: list[_Record] = []
        self._versions: list[int] = []
        self._places: list[int] = []
        self._digests: list[tuple[int, ...] | None] = []
        self._plan: Any = None
        self._groups: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self.is_outdated = False
        """Whether a tensor has to be recorded in another way from now on."""

    @property
    def is_empty(self) -> bool:
        return not self._records and not self._trained

    def add(self, name: str, tensor: torch.Tensor, kind: Kind, *, is_ignored: bool = False) -> None:
        """Add a tensor to the record.

        Args:
            name: what error messages call the tensor.
            tensor: the tensor.
            kind: what the tensor is to the model.
            is_ignored: whether a change of the tensor does not prevent a split of the batch, as that of statistics.
        """
        if kind is Kind.TRAINED and name not in self._learned.written and not is_lazy(tensor):
            self._trained.append(tensor)
            self._names.append(name)
        else:
            self._records.append(_Record(name, tensor, kind, is_ignored, is_lazy(tensor)))

    def record(self) -> None:
        """Record the version counters of all tensors, and copy those that may change."""
        self._versions = versions_of(self._trained)
        self._places = addresses_of(self._trained)
        self._digests = list(map(digest_of, self._trained)) if self._learned.is_first else []
        plan = self._learned.is_first, [_form(one.tensor) for one in self._records]
        if plan != self._plan:
            self._plan = None  # if copying fails, the copies are planned again
            self._make_copies()
            self._plan = plan
        for one in self._watched:
            one.version = version_of(one.tensor)
            one.place = place_of(one.tensor) if one.kind is Kind.OTHER and not one.is_copied else ()
        if self._groups:
            with torch.no_grad():
                for copies, sources in self._groups:
                    torch._foreach_copy_(copies, sources)

    def _make_copies(self) -> None:
        self._groups = []
        left_bytes = FIRST_BYTES
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for one in self._records:
            tensor = one.tensor
            self.is_outdated |= one.is_lazy and not is_lazy(tensor)
            one.is_copied = not one.is_lazy and self._is_copied(one, left_bytes)
            if one.is_copied:
                left_bytes -= tensor.nbytes if one.kind is Kind.FROZEN else 0
                if one.copy is None or _form(one.copy) != _form(tensor):
                    spare = self._spare.get(_form(tensor))
                    one.copy = spare.pop() if spare else torch.empty_like(tensor, requires_grad=False)
                copies, sources = groups.setdefault((tensor.device, tensor.dtype), ([], []))
                copies.append(one.copy)
                sources.append(tensor)
            else:
                one.copy = None
                is_tried = one.kind is Kind.FROZEN and self._learned.is_first and not one.is_lazy
                one.digest = digest_of(tensor) if is_tried else None
        self._spare = {}
        self._groups = list(groups.values())
        made = [one for one in self._records if not one.is_lazy]
        self._watched = [one for one in made if one.kind is not Kind.BUFFER or not one.is_copied]

    def _is_copied(self, one: _Record, left_bytes: int) -> bool:
        tensor, learned = one.tensor, self._learned
        is_buffer = one.kind in (Kind.BUFFER, Kind.TABLE)
        if not (can_be_copied(tensor) if is_buffer else is_plain_tensor(tensor)) or tensor.nbytes > FIRST_BYTES:
            return False
        if is_buffer or one.kind is Kind.OF_BATCH:
            return is_buffer and one.name not in learned.constant
        is_small = one.kind is Kind.OTHER and tensor.nbytes <= SMALL_BYTES
        is_tried = one.kind is Kind.FROZEN and learned.is_first and tensor.nbytes <= left_bytes
        return is_small or is_tried or one.name in learned.written

    def changed(self) -> list[str]:
        """Return the names of the tensors that have changed, without those that may change in each part of a batch."""
        names = [one.name for one in self._records if not one.is_ignored and not one.is_same()]
        return names + self._written_trained()

    def _written_trained(self) -> list[str]:
        now, places = versions_of(self._trained), addresses_of(self._trained)
        if now == self._versions and places == self._places:
            return []
        before = zip(self._versions, self._places, strict=True)
        pairs = zip(self._names, zip(now, places, strict=True), before, strict=True)
        return [name for name, one, other in pairs if one != other]

    def find_hidden_writes(self) -> list[str]:
        """Find, in the first step, writes through `.data` to trained parameters. Copy these parameters from now on.

        Such a write may be undone at the end of forward or of the step, so look for it in the middle too.
        """
        pairs = zip(self._names, self._trained, self._digests, strict=True) if self._digests else ()
        found = [name for name, tensor, digest in pairs if digest is not None and digest_of(tensor) != digest]
        self._learn(found)
        return found

    def restore(self) -> list[str]:
        """Restore the tensors from their copies. Return the names of changed tensors without a copy."""
        lost = list(dict.fromkeys([*self._written_trained(), *self.find_hidden_writes()]))
        for one in self._records:
            if one.is_same():
                continue
            if one.copy is not None:
                put_back(one.tensor, one.copy)
            else:
                lost.append(one.name)
                self._learned.constant.discard(one.name)
        self._learn(lost)
        return lost

    def _learn(self, written: list[str]) -> None:
        self.is_outdated |= bool(written)
        self._learned.written.update(written)

    def settle(self) -> None:
        """Learn, after a successful attempt, which tensors it has written."""
        learned = self._learned
        # To read the version counters of many parameters takes time. A late write is found at the latest in a failed
        # attempt, which then is not retried.
        is_due = learned.steps < _FIRST_STEPS or learned.steps % _EVERY == 0
        written = [*self._written_trained(), *self.find_hidden_writes()] if is_due else []
        for one in self._watched:
            if one.kind is Kind.TABLE:
                is_unchanged = version_of(one.tensor) == one.version
                if one.copy is not None and one.tensor.nbytes > SMALL_BYTES and is_unchanged:
                    learned.constant.add(one.name)
                    self.is_outdated = True
                elif one.name in learned.constant and not is_unchanged:
                    learned.constant.discard(one.name)
                    self.is_outdated = True
            elif one.kind is Kind.FROZEN and learned.is_first:
                if not one.is_same():
                    written.append(one.name)
                one.digest = None
            elif one.kind is not Kind.BUFFER and version_of(one.tensor) != one.version:
                written.append(one.name)
        self._learn([name for name in written if name not in learned.written])

    def copies(self) -> list[torch.Tensor]:
        """Return all copies, so that another record can use their memory again."""
        return [one.copy for one in self._records if one.copy is not None]

    def uncopied(self) -> list[tuple[str, torch.Tensor]]:
        """Return the names and tensors that are not copied."""
        single = [(one.name, one.tensor) for one in self._records if not one.is_copied and not one.is_lazy]
        return single + list(zip(self._names, self._trained, strict=True))


def _form(tensor: torch.Tensor) -> Any:
    return None if is_lazy(tensor) or tensor.is_nested else (tensor.shape, tensor.dtype, tensor.device)
