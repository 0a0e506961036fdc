"""Draw what each allocator setting does to one recorded run, and put the figures into docs/settings.md.

python tools/settings_pictures.py

Every setting is replayed with the same snapshot, which ran out of memory with none set. A picture is the memory at the
request that failed then: an allocated piece is dark, a free one inside of a segment light; what the driver
has is blank. One pixel is one MiB. It needs neither torch nor a GPU.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from ullage.base.units import MIB, text_of_bytes
from ullage.explaining.tuning.candidate import split_options
from ullage.explaining.tuning.trial import RecordedRun, Trial
from ullage.recorded.allocator.replay import BlockColumns, Replay, ReplayDevice, State, replay
from ullage.recorded.rebuild import program_of
from ullage.recorded.settings import Settings, parse_settings
from ullage.recorded.snapshot.snapshot import load_snapshot

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "tests" / "snapshots" / "variable_length_oom.pickle.gz"
DOCUMENT = ROOT / "docs" / "settings.md"
PICTURES = ROOT / "docs" / "pictures"
SETTINGS = {
    "none": "",
    "expandable": "expandable_segments:True",
    "split-32": "max_split_size_mb:32",
    "split-128": "max_split_size_mb:128",
    "split-512": "max_split_size_mb:512",
    "split-128-rounding-256": "max_split_size_mb:128,max_non_split_rounding_mb:256",
    "roundup-8": "roundup_power2_divisions:8",
    "collect-alone": "garbage_collection_threshold:0.8",
    "collect": "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
    "large-segment-64": "large_segment_size_mb:64",
}
"""By the name of the picture."""
PER_ROW, HEIGHT, GAP, LEFT, TOP = 720, 22, 8, 8, 42
ALLOCATED, FREE, TEXT = "#3b6ea5", "#f0c36d", "#808080"
MARKS = ("<!-- figures -->", "<!-- end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of bytes in one state, beside others in the same segment."""

    size: int
    is_allocated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The memory when the request comes that fails with nothing set, and how the whole run ends."""

    name: str
    """Of the picture."""
    text: str
    trial: Trial
    segments: tuple[tuple[Piece, ...], ...]
    room_bytes: int
    request_bytes: int

    @property
    def free_bytes(self) -> tuple[int, ...]:
        """Sizes of the free pieces within segments, the largest first."""
        return tuple(sorted((p.size for s in self.segments for p in s if not p.is_allocated), reverse=True))

    @property
    def reserved_bytes(self) -> int:
        return sum(piece.size for segment in self.segments for piece in segment)


def pieces_of(blocks: BlockColumns) -> tuple[tuple[Piece, ...], ...]:
    """Put together what lies side by side in one state; address space without memory is left out."""
    segments: dict[int, list[Piece]] = {}
    for segment, size, state in zip(
        blocks.segment_address[blocks.segment].tolist(), blocks.size.tolist(), blocks.state.tolist(), strict=True
    ):
        if state == State.UNMAPPED:
            continue
        pieces = segments.setdefault(segment, [])
        is_allocated = state in (State.ALLOCATED, State.WAITING)
        if pieces and pieces[-1].is_allocated == is_allocated:
            pieces[-1] = replace(pieces[-1], size=pieces[-1].size + size)
        else:
            pieces.append(Piece(size=size, is_allocated=is_allocated))
    return tuple(tuple(pieces) for _, pieces in sorted(segments.items()))


def moments() -> Iterator[Moment]:
    """Replay the run under each setting."""
    rebuilt = program_of(load_snapshot(SNAPSHOT).devices[0])
    run, device = RecordedRun.of(rebuilt), ReplayDevice(total_bytes=rebuilt.room_bytes)

    def done(settings: Settings, count: int | None = None) -> Replay:
        program = rebuilt.program
        if count is not None:
            columns = {name: getattr(program, name)[:count].copy() for name in ("op", "key", "size", "stream")}
            program = replace(program, **columns)
        return replay(program, settings, device)

    failed = int(done(rebuilt.settings).oom_ops[0])
    for name, text in SETTINGS.items():
        settings = parse_settings(text, semantics=rebuilt.settings.semantics)
        yield Moment(
            name=f"setting-{name}.svg",
            text=text,
            trial=run.attempt(text, settings, rebuilt.room_bytes),
            segments=pieces_of(done(settings, failed).blocks),
            room_bytes=rebuilt.room_bytes,
            request_bytes=int(rebuilt.program.size[failed]),
        )


def draw(moment: Moment) -> str:
    """Return the picture as SVG."""
    shapes: list[str] = []
    x, row = 0.0, 0

    def put(size: int, colour: str, *, dashed: bool = False) -> None:
        nonlocal x, row
        width = size / MIB
        while width > 1e-9:
            if x >= PER_ROW:
                x, row = 0.0, row + 1
            part = min(width, PER_ROW - x)
            place = f'x="{LEFT + x:.1f}" y="{TOP + row * (HEIGHT + GAP)}" width="{part:.1f}" height="{HEIGHT}"'
            style = f'fill="none" stroke="{TEXT}" stroke-dasharray="4 3"' if dashed else f'fill="{colour}"'
            shapes.append(f"<rect {place} {style}/>")
            x, width = x + part, width - part

    for segment in moment.segments:
        size = sum(piece.size for piece in segment) / MIB
        if x and size <= PER_ROW and x + size > PER_ROW:  # a segment is one piece: it shall look like one
            x, row = 0.0, row + 1
        for piece in segment:
            put(piece.size, ALLOCATED if piece.is_allocated else FREE)
        shapes.append(f'<path d="M{LEFT + x:.1f} {TOP - 2 + row * (HEIGHT + GAP)}v{HEIGHT + 4}" stroke="{TEXT}"/>')
    left = moment.room_bytes - moment.reserved_bytes
    if left and x + left / MIB > PER_ROW:
        x, row = 0.0, row + 1
    put(left, "", dashed=True)
    bottom = TOP + (row + 1) * (HEIGHT + GAP) + 18
    free = moment.free_bytes
    head = (
        f"{text_of_bytes(moment.reserved_bytes)} reserved, "
        f"{text_of_bytes(sum(free))} of it free in pieces of at most {text_of_bytes(free[0] if free else 0)}; "
        f"{text_of_bytes(left)} at the driver"
    )
    request = moment.request_bytes / MIB
    foot = f"the request: {text_of_bytes(moment.request_bytes)} in one piece"
    width, height = PER_ROW + 2 * LEFT, bottom + HEIGHT + 10
    text = f'fill="{TEXT}" font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f'<text x="{LEFT}" y="15" {text} font-weight="bold">{escape(moment.text or "nothing set")}</text>',
            f'<text x="{LEFT}" y="32" {text}>{escape(head)}</text>',
            *shapes,
            f'<rect x="{LEFT}" y="{bottom}" width="{request:.1f}" height="{HEIGHT}" fill="none" stroke="{TEXT}"/>',
            f'<text x="{LEFT + request + 8:.1f}" y="{bottom + 15}" {text}>{escape(foot)}</text>',
            "</svg>",
            "",
        ]
    )


def row_of(moment: Moment) -> str:
    """Return a row of the document's table."""
    trial = moment.trial
    name = ", ".join(f"`{option}:{value}`" for option, value in split_options(trial.text)) or "nothing set"
    ends = "yes" if trial.fits else "**no**"
    return (
        f"| {name} | {ends} | {text_of_bytes(trial.peak_reserved_bytes)} | {trial.driver_calls:,} | {trial.retries} |"
    )


def main() -> None:
    """Draw all, and write the table."""
    rows = ["| setting | succeeds | peak reserved | driver calls | retries |", "|---|---|---|---|---|"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for moment in moments():
        (PICTURES / moment.name).write_text(draw(moment), encoding="utf-8")
        rows.append(row_of(moment))
        print(rows[-1], moment.name)
    begin, end = MARKS
    text = DOCUMENT.read_text(encoding="utf-8")
    fresh = "\n".join([begin, *rows, end])
    DOCUMENT.write_text(re.sub(f"{begin}.*?{end}", lambda _: fresh, text, count=1, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
