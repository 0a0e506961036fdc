"""Report the GPU memory that libraries requested directly from the driver.

Memory from a library's own `cudaMalloc` is missing in PyTorch's figures. Managed memory counts as host memory, except
for the part that is prefetched to the GPU.
"""

from dataclasses import asdict

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.data.prediction import Outside, OutsideUse
from ullage.predicting.prediction.data.run_result import TakenOutside
from ullage.report.report import SizedPart, Within


def outside_of(taken: TakenOutside, *, reserved_bytes: int, context_bytes: int) -> Outside:
    """Return the memory that libraries requested directly from the driver.

    Args:
        taken: the memory taken outside, as the run reported it.
        reserved_bytes: PyTorch's peak of reserved memory.
        context_bytes: the size of the CUDA context on the emulated GPU.
    """
    uses = [OutsideUse(library=library, **asdict(figures)) for library, figures in taken.by_library.items()]
    beside = taken.peak_used_bytes - context_bytes - reserved_bytes
    return Outside(
        uses=sorted(uses, key=lambda use: (-use.peak_bytes - use.managed_peak_bytes, use.library)),
        peak_bytes=max(0, beside),
        managed_on_card_bytes=taken.managed_on_card_bytes,
    )


def part_of(outside: Outside) -> SizedPart | None:
    """Return the report part about memory that libraries requested directly from the driver, or None."""
    if not outside.peak_bytes:
        return None
    names = ", ".join(use.library for use in outside.uses[:2]) + (", ..." if len(outside.uses) > 2 else "")
    names = names or "a library's mapped pages or loaded modules"
    return SizedPart(label="outside PyTorch's allocator", size_bytes=outside.peak_bytes, remark=f"taken by {names}")


def rows_of(outside: Outside) -> tuple[Within, ...]:
    """Return one report row per library that requested memory directly from the driver."""
    rows = []
    for use in outside.uses:
        parts = [text_of_bytes(use.peak_bytes)] if use.peak_bytes else []
        if use.managed_peak_bytes:
            parts.append(f"{text_of_bytes(use.managed_peak_bytes)} of managed memory, which is host memory")
        if parts:
            how = " (a call through ctypes)" if use.library.startswith("libffi") else ""
            rows.append(Within(label="outside PyTorch", text=f"{' and '.join(parts)}, {use.library}{how}"))
    if outside.managed_on_card_bytes:
        text = f"up to {text_of_bytes(outside.managed_on_card_bytes)} at a time on the GPU, by prefetching"
        rows.append(Within(label="managed memory", text=text))
    return tuple(rows)
