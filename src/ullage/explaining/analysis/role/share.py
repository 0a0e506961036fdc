"""Adds up memory by role, such as gradients or activations, and advises how to reduce the largest one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.block_role import Role
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role.role import RoleColumns, Sureness

# A share of allocated memory. The heading of a report names the largest role only if it has at least this share.
_MOST: Final = 0.4
_CHANGES: Final[Mapping[Role, str]] = {
    Role.PARAMETERS: "a smaller type (bfloat16) or fewer parameters on this GPU reduce them; a smaller batch does not",
    Role.GRADIENTS: "frozen parameters (LoRA) have none; a smaller batch does not reduce them",
    Role.OPTIMIZER_STATE: "an optimizer with less state (SGD, Adafactor, 8-bit Adam) or sharding reduces it; a smaller "
    "batch does not",
    Role.ACTIVATIONS: "a smaller batch, shorter inputs and activation checkpointing reduce them",
    Role.INPUTS: "a smaller batch reduces them; inputs that a step does not use yet can stay on the host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleShare:
    """The memory of one role, such as gradients, when the allocation failed or at the memory peak."""

    role: Role
    bytes: int
    blocks: int
    certain_bytes: int
    likely_bytes: int
    guessed_bytes: int

    @property
    def sureness(self) -> Sureness:
        """The certainty that the memory holds this kind of data, such as gradients. Most bytes have this certainty."""
        known = (self.certain_bytes, self.likely_bytes, self.guessed_bytes)
        return Sureness(max(range(3), key=known.__getitem__))


def role_shares(recording: Recording, roles: RoleColumns) -> tuple[RoleShare, ...]:
    """Return the memory of each role, such as gradients or activations, largest first. Return nothing if no role is
    known.
    """
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
    total = sum(share.bytes for share in roles)
    if not roles or roles[0].bytes < _MOST * total:
        return None
    first = roles[0]
    if first.role not in _CHANGES or first.sureness is Sureness.GUESS:
        return None
    return first, round(100 * first.bytes / total)


def most_of(roles: Sequence[RoleShare]) -> str:
    """Return the end of a report's heading, such as ", 65 % ACTIVATIONS". It names the largest role."""
    found = _most(roles)
    return f", {found[1]} % {found[0].role.label.upper()}" if found is not None else ""


def advice_of(roles: Sequence[RoleShare]) -> str:
    """Return a sentence on how to reduce the largest kind of memory, such as activations."""
    found = _most(roles)
    if found is None:
        return ""
    share, percent = found
    name = share.role.label.capitalize()
    verb = "is" if share.role is Role.OPTIMIZER_STATE else "are"
    return f" {name} {verb} {percent} % of this peak: {_CHANGES[share.role]}."
