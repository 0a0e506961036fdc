"""A summary of one rank's snapshot, small enough to keep in memory for every rank."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from ullage.base.block_role import Role
from ullage.explaining.analysis.card import card_to_explain, recorded_card, recorded_cards
from ullage.explaining.analysis.cause import cause_of, evidence_of
from ullage.explaining.analysis.explain import explain
from ullage.explaining.analysis.growth import accumulation_of, growth_of
from ullage.explaining.analysis.holder import holders_of
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role import RoleColumns, role_shares, roles_of
from ullage.recorded.history import History
from ullage.recorded.rebuild import program_of
from ullage.recorded.settings import recorded_settings
from ullage.recorded.snapshot.snapshot import load_snapshot

# The largest number of source lines that are kept for a rank. All other lines are summed in a single entry.
_MOST_LINES: Final = 48
# The sizes in bytes of the cuBLAS workspace that PyTorch chooses. The first is for GPUs before Hopper, the second is
# for Hopper and later.
_CUBLAS_BYTES: Final = frozenset((8_519_680, 32 << 20))
OTHER_LINES: Final = "(other lines)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """The memory figures of one rank when its last allocation failed, or at the memory peak if none failed. Sizes are
    in bytes.
    """

    device: int
    cause: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    """The allocated bytes when the last allocation failed, or at the memory peak."""
    reserved_bytes: int
    requested_bytes: int | None
    """The size in bytes of the last allocation that failed, or None."""
    room_bytes: int | None
    """The most bytes that the allocator could reserve, or None if unknown."""
    failing_line: str | None
    retries: int
    growth_bytes: int
    """The bytes by which allocated memory grows in each training step."""
    growth_line: str | None
    entries: int
    settings: str | None
    cublas_bytes: int
    """The size in bytes of the cuBLAS workspace, or 0 if there is none."""
    lines: dict[str, tuple[int, int]]
    """The allocated bytes and the number of blocks for each source line."""
    roles: dict[str, int]
    headline: str = ""
    sentence: str = ""
    """The first sentence of the explanation for this snapshot. Empty if no explanation was made."""

    @property
    def failed(self) -> bool:
        """Whether the last recorded allocation failed."""
        return self.requested_bytes is not None

    def to_json(self) -> dict[str, Any]:
        """Return this summary as plain data for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Create a summary from the data that `to_json` returned."""
        return cls(**{**data, "lines": {line: (size, count) for line, (size, count) in data["lines"].items()}})


def summary_of(path: Path, *, is_whole: bool = False) -> RankSummary:
    """Return the summary of one rank's snapshot.

    Args:
        path: the snapshot file.
        is_whole: whether the snapshot is also explained, which takes several more replays.

    Raises:
        UllageError: the snapshot cannot be read.
    """
    snapshot = load_snapshot(path)
    device = card_to_explain(recorded_cards(snapshot.devices))
    history = snapshot.devices[device]
    rebuilt = program_of(history if history.has_requests else history.without_trace())
    found = _summary(history, Recording.of(history, rebuilt))
    if not is_whole:
        return found
    told = explain(history, source=snapshot.path)
    return replace(found, cause=told.cause.value, headline=told.headline, sentence=told.sentence)


def _summary(history: History, recording: Recording) -> RankSummary:
    evidence = evidence_of(recording)
    growth = growth_of(recording)
    accumulation = None if growth else accumulation_of(recording)
    roles = roles_of(recording)
    card = recorded_card(history)
    kept = growth or accumulation
    failing = recording.failing_op if recording.is_recorded_failure else None
    return RankSummary(
        device=history.device,
        cause=cause_of(recording, evidence, growth, accumulation).value,
        peak_allocated_bytes=evidence["peak_allocated_bytes"],
        peak_reserved_bytes=max(card.peak_reserved_bytes, evidence["reserved_bytes"] if failing is not None else 0),
        allocated_bytes=evidence["allocated_bytes"],
        reserved_bytes=evidence["reserved_bytes"],
        requested_bytes=card.failed_bytes,
        room_bytes=evidence.get("room_bytes"),
        failing_line=None if failing is None else recording.line_of(int(recording.program.key[failing])),
        retries=evidence["retries"],
        growth_bytes=growth.bytes_per_step if growth else 0,
        growth_line=kept.line if kept else None,
        entries=len(history),
        settings=recorded_settings(history.settings),
        cublas_bytes=_cublas_workspace(recording, roles),
        lines=_lines(recording),
        roles={share.role.value: share.bytes for share in role_shares(recording, roles)},
    )


def _cublas_workspace(recording: Recording, roles: RoleColumns) -> int:
    sizes = {
        block.size_bytes for block in recording.held() if block.key >= 0 and roles.role_of(block.key) is Role.WORKSPACES
    }
    return max(sizes & _CUBLAS_BYTES, default=0)


def _lines(recording: Recording) -> dict[str, tuple[int, int]]:
    holders = holders_of(recording)
    lines = {holder.line: (holder.bytes, holder.blocks) for holder in holders[:_MOST_LINES]}
    if rest := holders[_MOST_LINES:]:
        lines[OTHER_LINES] = (sum(holder.bytes for holder in rest), sum(holder.blocks for holder in rest))
    return lines
