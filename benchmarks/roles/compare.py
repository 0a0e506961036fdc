"""What `ullage explain` says of the blocks at a peak beside what `ullage predict` knows of them, in bytes."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ullage.analysis.assumption import closest
from ullage.analysis.recording import Recording
from ullage.analysis.role import Sureness, roles_of
from ullage.block_role import Role
from ullage.snapshot.snapshot import load_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One workload: bytes by what predict knows, what explain says, and how sure it is."""

    name: str
    peak_bytes: int
    known_bytes: int
    """The peak as predict measured it."""
    found: Counter[tuple[Role, Role, Sureness]]

    @property
    def right_bytes(self) -> int:
        """Bytes of which both say the same."""
        return sum(size for (known, said, _), size in self.found.items() if known == said)


def compare(name: str, folder: Path) -> Compared:
    """Compare one workload that `collect` has run."""
    truth = json.loads((folder / f"{name}.json").read_text())
    known = {(address, size): Role(role) for address, size, role in truth["blocks"]}
    history = max(load_snapshot(folder / f"{name}.pickle").devices.values(), key=len)
    assumed = closest(history, semantics=None, alloc_conf=None)
    recording = Recording.of(history, assumed.program_of(history, semantics=None, alloc_conf=None))
    roles = roles_of(recording)
    found: Counter[tuple[Role, Role, Sureness]] = Counter()
    for block in recording.held():
        # A block at another address, or of another size, counts as told wrong.
        role = known.get((block.address, block.size_bytes), Role.ROUNDING)
        found[role, roles.role_of(block.key), roles.sureness_of(block.key)] += block.size_bytes
    return Compared(
        name=name,
        peak_bytes=sum(found.values()),
        known_bytes=truth["peak_bytes"],
        found=found,
    )
