"""Why a rank differs from those that are alike: one sentence, from the figures of both."""

from collections.abc import Iterator
from typing import Final

from ullage.base.block_role import Role
from ullage.base.units import text_of_bytes
from ullage.explaining.fleet.alike import GAP
from ullage.explaining.fleet.rank_summary import OTHER_LINES, RankSummary

_WORTH: Final = 0.2
"""The least part of a difference that a line or a role must have to be named."""


def why_it_differs(rank: RankSummary, usual: RankSummary) -> str:
    """Return what a rank has more or less of than a usual one, and at which line."""
    said = list(_ends(rank, usual))
    if rank.cublas_bytes != usual.cublas_bytes and rank.cublas_bytes and usual.cublas_bytes:
        said.append(
            f"another kind of card: cuBLAS took {text_of_bytes(rank.cublas_bytes)} as its workspace, elsewhere "
            f"{text_of_bytes(usual.cublas_bytes)} (it is 32 MiB from Hopper on)"
        )
    if rank.settings != usual.settings:
        said.append(f"other settings of the allocator: {rank.settings or 'none'}, elsewhere {usual.settings or 'none'}")
    said += _bytes(rank, usual)
    return "; ".join(said) or "no figure tells it from the others"


def _ends(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    if rank.requested_bytes is not None and not usual.failed:
        at = f" at {rank.failing_line}" if rank.failing_line else ""
        cause = rank.cause.replace("_", " ")
        yield f"memory ran out ({cause}): {text_of_bytes(rank.requested_bytes)} were asked for{at}"
    elif usual.failed and not rank.failed:
        yield "memory did not run out"
    if rank.growth_line != usual.growth_line and rank.growth_line is not None:
        each = f"every step keeps {text_of_bytes(rank.growth_bytes)} more" if rank.growth_bytes else "blocks are kept"
        yield f"memory grows: {each}, allocated at {rank.growth_line}"


def _bytes(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    more = rank.allocated_bytes - usual.allocated_bytes
    if abs(more) > GAP * usual.allocated_bytes:
        yield f"{_amount(more)} allocated{_of(rank, usual, more)}"
        return  # and what is reserved follows from that
    spare = rank.peak_reserved_bytes - rank.peak_allocated_bytes
    usual_spare = usual.peak_reserved_bytes - usual.peak_allocated_bytes
    if not rank.failed and spare - usual_spare > GAP * usual.peak_reserved_bytes:
        yield (
            f"memory in pieces: {text_of_bytes(spare)} reserved beyond the peak of what was allocated, "
            f"elsewhere {text_of_bytes(max(0, usual_spare))}"
        )
    elif spare - usual_spare < -GAP * usual.peak_reserved_bytes:
        yield f"{text_of_bytes(usual_spare - spare)} less reserved, for the same allocated"


def _amount(more: int) -> str:
    return f"{text_of_bytes(abs(more))} {'more' if more > 0 else 'less'}"


def _of(rank: RankSummary, usual: RankSummary, more: int) -> str:
    """Return of which roles, and at which line most of it."""
    sign = 1 if more > 0 else -1
    roles = {
        role: sign * (rank.roles.get(role, 0) - usual.roles.get(role, 0))
        for role in (*rank.roles, *usual.roles)
        if role != Role.UNKNOWN.value
    }
    lines = {
        line: sign * (rank.lines.get(line, (0, 0))[0] - usual.lines.get(line, (0, 0))[0])
        for line in (*rank.lines, *usual.lines)
        if line != OTHER_LINES
    }
    role, of_role = max(roles.items(), key=lambda item: item[1], default=("", 0))
    line, of_line = max(lines.items(), key=lambda item: item[1], default=("", 0))
    said = ""
    if of_role >= _WORTH * abs(more):
        said += f", {text_of_bytes(of_role)} of it {Role(role).label}"
    if of_line >= _WORTH * abs(more):
        said += f", {text_of_bytes(of_line)} at {line}"
    return said
