"""Memory that libraries took beside PyTorch's allocator: by the shared object whose code asked the driver for it.

What a library keeps on the card itself (its own cudaMalloc) is in no figure of PyTorch's, and in what the driver says
is used. Managed memory is the host's; what of it was prefetched to the card counts there. What kernels would touch of
it on a real card without a prefetch is not known.
"""

from dataclasses import asdict

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.data.prediction import Outside, OutsideUse
from ullage.predicting.prediction.data.run_result import TakenOutside
from ullage.report.report import SizedPart, Within


def outside_of(taken: TakenOutside, *, reserved_bytes: int, context_bytes: int) -> Outside:
    """Read from a run's result what was taken outside.

    Args:
        taken: in the run.
        reserved_bytes: PyTorch's peak.
        context_bytes: what the emulated card took for the context.
    """
    uses = [OutsideUse(library=library, **asdict(figures)) for library, figures in taken.by_library.items()]
    beside = taken.peak_used_bytes - context_bytes - reserved_bytes
    return Outside(
        uses=sorted(uses, key=lambda use: (-use.peak_bytes - use.managed_peak_bytes, use.library)),
        peak_bytes=max(0, beside),
        managed_on_card_bytes=taken.managed_on_card_bytes,
    )


def part_of(outside: Outside) -> SizedPart | None:
    """The part of the card that is none of PyTorch's."""
    if not outside.peak_bytes:
        return None
    names = ", ".join(use.library for use in outside.uses[:2]) + (", ..." if len(outside.uses) > 2 else "")
    names = names or "pages or modules that a library asked for"
    return SizedPart(label="outside PyTorch's allocator", size_bytes=outside.peak_bytes, remark=f"taken by {names}")


def rows_of(outside: Outside) -> tuple[Within, ...]:
    """Say of each library what it asked for."""
    rows = []
    for use in outside.uses:
        parts = [text_of_bytes(use.peak_bytes)] if use.peak_bytes else []
        if use.managed_peak_bytes:
            parts.append(f"{text_of_bytes(use.managed_peak_bytes)} of managed memory, which is the host's")
        if parts:
            how = " (a call through ctypes)" if use.library.startswith("libffi") else ""
            rows.append(Within(label="outside PyTorch", text=f"{' and '.join(parts)}, {use.library}{how}"))
    if outside.managed_on_card_bytes:
        text = f"{text_of_bytes(outside.managed_on_card_bytes)} at once on the card, by prefetching"
        rows.append(Within(label="managed memory", text=text))
    return tuple(rows)
