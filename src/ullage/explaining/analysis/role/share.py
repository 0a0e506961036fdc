"""The roles at the moment that matters, in bytes, each with how sure it is; and what lowers the one that is most."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.block_role import Role
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role.role import RoleColumns, Sureness

_MOST: Final = 0.4
"""The least share of what was allocated from which a role is named as most of it."""
_CHANGES: Final[Mapping[Role, str]] = {
    Role.PARAMETERS: "a smaller type (bfloat16) or fewer parameters on this card lower them, a smaller batch does not",
    Role.GRADIENTS: "parameters that need no training (LoRA) have none, and a smaller batch does not lower them",
    Role.OPTIMIZER_STATE: "an optimizer that keeps less (SGD, Adafactor, 8-bit Adam) or sharding lowers it, a smaller "
    "batch does not",
    Role.ACTIVATIONS: "they shrink with the batch and the length of its items, and with checkpointing",
    Role.INPUTS: "they shrink with the batch; what a step does not use yet can wait on the host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleShare:
    """A role at the moment that matters; bytes after rounding, which add up to what was allocated."""

    role: Role
    bytes: int
    blocks: int
    certain_bytes: int
    likely_bytes: int
    guessed_bytes: int

    @property
    def sureness(self) -> Sureness:
        """How sure the greater part of these bytes is."""
        known = (self.certain_bytes, self.likely_bytes, self.guessed_bytes)
        return Sureness(max(range(3), key=known.__getitem__))


def role_shares(recording: Recording, roles: RoleColumns) -> tuple[RoleShare, ...]:
    """Return the roles that held memory at the moment that matters, the largest first; none where nothing tells any."""
    sizes: Counter[tuple[Role, Sureness]] = Counter()
    counts: Counter[Role] = Counter()
    for block in recording.held():
        role = roles.role_of(block.key) if block.key >= 0 else Role.UNKNOWN
        sureness = roles.sureness_of(block.key) if block.key >= 0 else Sureness.GUESS
        sizes[role, sureness] += block.size_bytes
        counts[role] += 1
    found = (
        RoleShare(
            role=role,
            bytes=sum(sizes[role, sureness] for sureness in Sureness),
            blocks=counts[role],
            certain_bytes=sizes[role, Sureness.CERTAIN],
            likely_bytes=sizes[role, Sureness.LIKELY],
            guessed_bytes=sizes[role, Sureness.GUESS],
        )
        for role in Role
        if role in counts
    )
    shares = sorted(found, key=lambda share: -share.bytes)
    return tuple(shares) if any(share.role is not Role.UNKNOWN for share in shares) else ()


def _most(roles: Sequence[RoleShare]) -> tuple[RoleShare, int] | None:
    """The role that is most of what was allocated, with its percentage; None where none is, or that is a guess."""
    total = sum(share.bytes for share in roles)
    if not roles or roles[0].bytes < _MOST * total:
        return None
    first = roles[0]
    if first.role not in _CHANGES or first.sureness is Sureness.GUESS:
        return None
    return first, round(100 * first.bytes / total)


def most_of(roles: Sequence[RoleShare]) -> str:
    """Return what a headline says of the role that is most of the memory: ", 65 % ACTIVATIONS", or nothing."""
    found = _most(roles)
    return f", {found[1]} % {found[0].role.label.upper()}" if found is not None else ""


def advice_of(roles: Sequence[RoleShare]) -> str:
    """Return a sentence about what lowers the role that is most of the memory; empty where none is."""
    found = _most(roles)
    if found is None:
        return ""
    share, percent = found
    name = share.role.label.capitalize()
    verb = "is" if share.role is Role.OPTIMIZER_STATE else "are"
    return f" {name} {verb} {percent} % of it: {_CHANGES[share.role]}."
