"""The roles at the moment that matters, in bytes, each with how sure it is."""

from collections import Counter
from dataclasses import dataclass

from ullage.base.block_role import Role
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role.role import RoleColumns, Sureness


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
