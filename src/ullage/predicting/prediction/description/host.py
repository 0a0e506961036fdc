"""Create the report sections about host memory."""

from collections.abc import Iterator
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.description.tables import place_of
from ullage.predicting.prediction.host.memory import GIVEN, HostLine, HostUse
from ullage.report.report import Meter, Section, Shares, SizedPart, Within

_LINES_SHOWN: Final = 6
# The option --host-memory shows source lines in any case.
_SHOWN_FROM: Final = 20
# Smaller amounts do not matter to the user, such as the four bytes that `item()` copies.
_LEAST_PINNED_BYTES: Final = 1 << 20


def host_sections(host: HostUse | None) -> Iterator[Section]:
    """Yield a bar with the host memory, and the source lines that allocated a large part of it."""
    if host is None:
        return
    yield _bar(host)
    kinds = ("pinned", host.pinned_lines), ("tensors", host.tensor_lines), ("arrays", host.array_lines)
    rows = [(line, what) for what, lines in kinds for line in lines]
    asked_bytes = host.pinned_peak_bytes + host.tensors_peak_bytes + host.arrays_peak_bytes
    is_much = host.limit_source == GIVEN or asked_bytes * _SHOWN_FROM >= (host.limit_bytes or host.total_bytes)
    if rows and is_much:
        rows.sort(key=lambda row: -row[0].bytes)
        yield Shares(
            title="Host memory by source line (each kind at its own peak)",
            total_bytes=max(asked_bytes, 1),
            parts=tuple(
                SizedPart(
                    label=place_of(line.file, line.line, "(other lines)"),
                    size_bytes=line.bytes,
                    remark=_purpose(line, what),
                )
                for line, what in rows[:_LINES_SHOWN]
            ),
        )


def _bar(host: HostUse) -> Meter:
    ranks = host.ranks_of_a_node
    each = f"{ranks} x {text_of_bytes(host.resident_peak_bytes)}, " if ranks > 1 else ""
    once = f"; memory of mapped files ({text_of_bytes(host.file_bytes)}) counted once" if ranks > 1 else ""
    parts = [
        SizedPart(
            label="resident" if ranks == 1 else f"resident in {ranks} ranks",
            size_bytes=ranks * host.resident_peak_bytes - (ranks - 1) * host.file_bytes,
            remark=f"{each}excluding {text_of_bytes(host.own_bytes)} used by ullage{once}",
        )
    ]
    if host.pinned_untouched_bytes:
        remark = "on a real GPU, pinned memory is resident even if unwritten"
        parts.append(
            SizedPart(label="pinned, not written", size_bytes=ranks * host.pinned_untouched_bytes, remark=remark)
        )
    if host.workers_bytes:
        named = f"{host.workers} process{'' if host.workers == 1 else 'es'}" + (" each" if ranks > 1 else "")
        shared = f", {text_of_bytes(host.shared_memory_bytes)} of it in /dev/shm" if host.shared_memory_bytes else ""
        parts.append(
            SizedPart(
                label="workers",
                size_bytes=ranks * host.workers_bytes,
                remark=f"{named}, memory not shared with the script{shared}",
            )
        )
    within = [Within(label="CUDA driver", text="its host memory is not counted: only a real GPU has it")]
    if host.pinned_peak_bytes >= _LEAST_PINNED_BYTES:
        text = f"{text_of_bytes(host.pinned_peak_bytes)} per process at the peak, as rounded up by PyTorch, exact"
        within.insert(0, Within(label="pinned", text=text))
    limit = host.total_bytes if host.limit_bytes is None else host.limit_bytes
    return Meter(
        title="Host memory at the peak" + (" (one node)" if ranks > 1 else ""),
        total_bytes=limit,
        total_label="--host-memory" if host.limit_source == GIVEN else host.limit_source,
        parts=tuple(parts),
        within=tuple(within),
        rest_label="free" if host.total_bytes <= limit else "missing",
    )


def _purpose(line: HostLine, what: str) -> str:
    library = "" if line.is_users or line.file is None else f", by {line.function} of a library"
    return f"{what}, {line.blocks} block{'' if line.blocks == 1 else 's'}{library}"
