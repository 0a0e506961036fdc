"""The written form of a reproduction: a Python script that needs only torch, and a report.

Only numbers go into it, and words of ours: nothing that stands in a snapshot, such as a file's name, can get there.
"""

import textwrap
from typing import Final

from ullage.base.errors import UsageError
from ullage.base.units import GIB, KIB, MIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.reproduction.reproduction import Reproduction
from ullage.recorded.program import Op
from ullage.recorded.settings import text_of_settings
from ullage.report.report import Remarks, Report, Table, TableRow, Tone

_MOST_STREAMS: Final = 32  # that torch.cuda.Stream() gives before it gives the first again

_WIDTH: Final = 118
_EXPECTED: Final = (
    '"reproduced: CUDA out of memory. Tried to allocate ..." and exit code 0; "not reproduced: ..." and exit code 1 '
    "where the allocator finds a place; exit code 2 where it cannot be tried."
)

_SCRIPT: Final = """\
{comment}
import os
import sys

# What the run had set; an argument sets something else.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = sys.argv[1] if len(sys.argv) > 1 else "{settings}"

settings = os.environ["PYTORCH_CUDA_ALLOC_CONF"] or "none"
print(f"settings: {{settings}} (an argument sets others, the environment does not)")

import torch  # noqa: E402  the settings come first

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROOM = {room_size}  # bytes that the allocator can reserve
{needed}

def stop(code, text):
    print(text)
    sys.exit(code)


if not torch.cuda.is_available():
    stop(2, "this script needs a CUDA card, and torch finds none")
on_card = torch.cuda.mem_get_info()[0]
if on_card < ROOM:
    stop(2, f"this script needs {{ROOM:,}} bytes, and {{on_card:,}} are free on the card; use a larger or an idle one")
torch.cuda.set_per_process_memory_fraction((ROOM + 0.5) / torch.cuda.get_device_properties(0).total_memory)
{streams}
is_last = False
try:
{body}    is_last = True
    {last}
except torch.cuda.OutOfMemoryError as error:
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    numbers = f"{{allocated:,}} bytes allocated, {{reserved - allocated:,}} cached, {{ROOM - reserved:,}} free"
    if not is_last:
        stop(1, f"not reproduced: an earlier request failed ({{numbers}}): {{error}}")
{check}    stop(0, f"{{numbers}}\\nreproduced: {{error}}")
stop(1, "not reproduced: every request succeeded")
"""
_NEEDED: Final = "NEEDED = {size}  # bytes that the last request needs in one piece\n"
_CHECK: Final = """\
    if ROOM - allocated < NEEDED:
        stop(1, f"not reproduced: memory is full, not fragmented ({numbers}): {error}")
"""


def script_of(reproduction: Reproduction) -> str:
    """Write a reproduction as a script.

    Raises:
        UsageError: it needs more streams than torch has.
    """
    body, last, streams = _body(reproduction)
    is_cut_up = reproduction.cause in (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS)
    return _SCRIPT.format(
        comment=_comment(reproduction),
        settings=text_of_settings(reproduction.settings),
        room_size=_size(reproduction.room_bytes),
        needed=_NEEDED.format(size=_size(reproduction.needed_bytes)) if is_cut_up else "",
        streams="".join(f"s{number} = torch.cuda.Stream()\n" for number in range(1, streams + 1)),
        body="".join(f"    {line}\n" for line in body),
        last=last,
        check=_CHECK if is_cut_up else "",
    )


def _comment(reproduction: Reproduction) -> str:
    shrunk = "none can be left out" if reproduction.finished else "the time ran out before the smallest was found"
    items = [
        ("Shows", f"{statement_of(reproduction)} Only sizes and their order are left of the recording."),
        ("Size", f"{counts_of(reproduction)}; {shrunk}."),
        ("Needs", f"torch, and a CUDA card with {text_of_bytes(reproduction.room_bytes)} free: its limit for itself."),
        ("Run", "python THIS_FILE"),
        ("Expected", _EXPECTED),
    ]
    if reproduction.expandable_helps:
        items.append(("Helps", "python THIS_FILE expandable_segments:True (not reproduced then, nor did the run fail)"))
    items += [("Note", note) for note in reproduction.notes]
    lines = ["Made by `ullage repro` from a recording of PyTorch's allocator.", ""]
    for label, text in items:
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"{label:<10}", subsequent_indent=" " * 10)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def statement_of(reproduction: Reproduction) -> str:
    """Return one sentence about what the script shows."""
    free, cached = text_of_bytes(reproduction.free_bytes), text_of_bytes(reproduction.cached_bytes)
    request, needed = text_of_bytes(reproduction.requested_bytes), text_of_bytes(reproduction.needed_bytes)
    if reproduction.cause is Cause.FRAGMENTED:
        return f"Memory is fragmented: {needed} are needed in one piece; {free} are free and {cached} cached."
    name = reproduction.cause.value.replace("_", " ")
    of_driver = f", for which the driver is asked for {needed}," if needed != request else ""
    return f"The cause is {name}: {request} are asked for{of_driver} with {free} free and {cached} cached."


def counts_of(reproduction: Reproduction) -> str:
    """Return how much of the recording is left, in words."""
    plural = "s" if reproduction.allocations > 1 else ""
    return f"{reproduction.allocations:,} allocation{plural}, of {reproduction.recorded_allocations:,} in the recording"


def describe(reproduction: Reproduction, *, source: str) -> Report:
    """Return the report of a reproduction: the recording and the script in comparison."""
    pairs = (
        ("asked for", reproduction.requested_bytes, reproduction.requested_bytes),
        ("the driver is asked for", reproduction.needed_bytes, reproduction.needed_bytes),
        ("free on the card", reproduction.recorded_free_bytes, reproduction.free_bytes),
        ("cached", reproduction.recorded_cached_bytes, reproduction.cached_bytes),
    )
    rows = [TableRow(cells=(name, text_of_bytes(run), text_of_bytes(script))) for name, run, script in pairs]
    counts = (f"{reproduction.recorded_allocations:,}", f"{reproduction.allocations:,}")
    rows.append(TableRow(cells=("allocations", *counts), tone=Tone.GOOD))
    if reproduction.expandable_helps:
        rows.append(TableRow(cells=("expandable_segments:True", "succeeds", "succeeds")))
    fail = "fail" if reproduction.allocations > 1 else "fails"
    notes = (f"{reproduction.trials:,} variants were replayed", *reproduction.notes)
    return Report(
        headline=reproduction.cause.value.replace("_", " ").upper(),
        tone=Tone.BAD,
        subject=source,
        sentence=f"{counts_of(reproduction)}, {fail} in the same way. {statement_of(reproduction)}",
        sections=(
            Table(
                title="When the last request fails", columns=("", "in the recording", "in the script"), rows=tuple(rows)
            ),
            Remarks(title="To know", items=notes),
        ),
    )


def _body(reproduction: Reproduction) -> tuple[list[str], str, int]:
    """Return the lines of all operations but the last, the last line, and the number of streams needed."""
    sketch = reproduction.sketch
    names: dict[int, str] = {}
    streams: dict[int, int] = {}
    lines = []
    rows = zip(*(column.tolist() for column in (sketch.op, sketch.key, sketch.size, sketch.stream)), strict=True)
    for op, key, size, stream in rows:
        if op == Op.ALLOCATE:
            names[key] = f"x{len(names) + 1}"
            line = f'{names[key]} = torch.empty({_size(size)}, dtype=torch.uint8, device="cuda")'
            if stream:
                number = streams.setdefault(stream, len(streams) + 1)
                line = f"with torch.cuda.stream(s{number}): {line}"
            lines.append(line)
        elif op == Op.FREE and key in names:
            lines.append(f"del {names[key]}")
        elif op == Op.EMPTY_CACHE:
            lines.append("torch.cuda.empty_cache()")
    if len(streams) > _MOST_STREAMS:
        raise UsageError(
            f"the failure needs {len(streams)} streams, but torch has at most {_MOST_STREAMS} different ones: a script "
            "cannot reproduce it"
        )
    return lines[:-1], lines[-1], len(streams)


def _size(n_bytes: int) -> str:
    """Return bytes as Python source: "36 * MIB" where it is a whole number of MiB."""
    for unit_bytes, unit in ((GIB, "GIB"), (MIB, "MIB"), (KIB, "KIB")):
        if n_bytes and n_bytes % unit_bytes == 0:
            return f"{n_bytes // unit_bytes} * {unit}"
    return f"{n_bytes:_}"
