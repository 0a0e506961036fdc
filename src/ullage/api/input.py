"""Detect what kind of file the user passed to `ullage explain`, and read log files in pieces."""

import codecs
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from ullage.base.errors import UsageError, shortened
from ullage.base.foreign_files import open_regular
from ullage.base.packed import unpacked
from ullage.base.units import text_of_bytes
from ullage.explaining.fleet.rank_files import RankFile, folder_of_ranks
from ullage.recorded.message.notebook import is_notebook, printed_by
from ullage.recorded.snapshot.file import is_archive, is_no_log
from ullage.recorded.timeline import is_timeline

if TYPE_CHECKING:
    from ullage.recorded.snapshot.snapshot import Snapshot

STANDARD_INPUT: Final = Path("-")
_PIECE_BYTES: Final = 1 << 20
# in bytes; a larger text file is searched as plain text
_MOST_NOTEBOOK_BYTES: Final = 256 << 20
_PROGRESS_BYTES: Final = 32 << 20
# including the bytes of terminal colours and progress bars
_OF_TEXTS: Final = bytes((0, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)))
_MOST_OTHERS_ONE_IN: Final = 50
_MARKS: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}
_BEGINNING_BYTES = 4096


class InputKind(StrEnum):
    """A kind of input for `ullage explain`. Error messages print its value, such as "the folder of a run"."""

    SNAPSHOT = "a snapshot"
    """A memory snapshot, compressed or not. Binary files of an unknown kind count as snapshots."""
    RANKS = "a folder with snapshots of several ranks"
    RUN = "the folder of a run"
    """A folder that `ullage run` wrote, or that contains folders of several runs.

    A folder without memory snapshots of several ranks always has this kind.
    """
    TEXT = "text"
    """A log, the text of an error, or a saved notebook, compressed or not."""
    TIMELINE = "a memory timeline of PyTorch's profiler"
    """A file that `export_memory_timeline` wrote as JSON, compressed or not."""
    ARCHIVE = "an archive"
    """An archive or a compression format that ullage cannot read, such as tar, xz or zstd."""
    STANDARD_INPUT = "standard input"
    """Standard input or a pipe. Its text can be read only once."""


@dataclass(frozen=True, slots=True)
class Input:
    """A file, folder or stream that the user passed to `ullage explain`, and its kind."""

    path: Path
    kind: InputKind
    ranks: tuple[RankFile, ...] = ()
    """The snapshot of each rank, if the input is a folder with one snapshot for each rank."""


def input_of(file: Path) -> Input:
    """Detect the kind of an input by its content, not by its name.

    Raises:
        UsageError: the file cannot be read, or is a zip archive of several files.
        OSError: the folder cannot be read.
    """
    if file == STANDARD_INPUT or file.is_fifo():
        return Input(file, InputKind.STANDARD_INPUT)
    if file.is_dir():
        ranks = folder_of_ranks(file)
        return Input(file, InputKind.RANKS if ranks else InputKind.RUN, ranks)
    with opened(file) as source:
        beginning = source.read(_BEGINNING_BYTES)
    if is_archive(beginning):
        return Input(file, InputKind.ARCHIVE)
    if is_timeline(beginning):
        return Input(file, InputKind.TIMELINE)
    return Input(file, InputKind.TEXT if looks_like_text(beginning) else InputKind.SNAPSHOT)


def load_recorded(file: Path) -> "Snapshot":
    """Load a snapshot for a command that accepts only snapshots.

    Raises:
        SnapshotError: the file cannot be read, or is not a snapshot. The error names the kind of the file.
    """
    from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot

    try:
        return load_snapshot(file)
    except SnapshotError:
        kind = None
        with suppress(UsageError, OSError, ValueError):  # the error above already says what cannot be read
            is_empty = not any(file.iterdir()) if file.is_dir() else not file.stat().st_size
            kind = None if is_empty else input_of(file).kind
        if kind not in (InputKind.TEXT, InputKind.RANKS, InputKind.RUN, InputKind.TIMELINE):
            raise
        raise SnapshotError(
            f"{file} is not a snapshot but {kind.value}, which ullage explain reads; this command "
            "needs a snapshot: call torch.cuda.memory._record_memory_history() at the start, and "
            "torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught"
        ) from None


def looks_like_text(beginning: bytes) -> bool:
    """Return whether a file's first bytes are text."""
    if is_no_log(beginning):
        return False
    is_pickle = beginning.startswith((b"\x80", b"(dp", b"(lp"))  # pickle protocol 2 or later, or protocol 0
    # If a log is truncated while it is being written, zero bytes replace the removed part.
    others = len(beginning.translate(None, _OF_TEXTS))
    return beginning.startswith(tuple(_MARKS)) or not (is_pickle or others > len(beginning) // _MOST_OTHERS_ONE_IN)


def pieces_of(file: Path, progress: Callable[[str], None]) -> Iterator[str]:
    """Yield the text of a file in pieces, and report progress as the number of bytes read.

    Raises:
        UsageError: the file cannot be read, or is not text.
    """
    read = reported = 0
    with opened(file) as source:
        beginning = source.read(_PIECE_BYTES)
        if not beginning:
            # If standard input is closed, the command line opens /dev/null in its place.
            what = "standard input is closed or empty" if file == STANDARD_INPUT else f"{file} is empty"
            raise UsageError(f"{what}; expected a snapshot, a log or an error's text")
        if beginning.startswith(b"\x80"):
            raise UsageError(
                f"{file} is a snapshot, but only text can be read this way; give the path of a regular file"
            )
        encoding = next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        piece = beginning
        if is_notebook(beginning[:200].decode(encoding, errors="replace")):
            content = beginning + source.read(_MOST_NOTEBOOK_BYTES)
            printed = printed_by(content.decode(encoding, errors="replace"))
            if printed is not None:
                yield printed
                return
            piece = content
        while piece:
            yield decoder.decode(piece).replace("\0", "")
            read += len(piece)
            if read - reported >= _PROGRESS_BYTES:
                reported = read
                progress(f"read {text_of_bytes(read)}")
            piece = source.read(_PIECE_BYTES)
        yield decoder.decode(b"", final=True)


@contextmanager
def opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading and decompress it if needed, or open standard input.

    Raises:
        UsageError: the input cannot be read.
    """
    if file == STANDARD_INPUT and sys.stdin is None:
        raise UsageError("standard input is closed; expected text on it, or the name of a file")
    try:
        raw = cast(BufferedReader, sys.stdin.buffer if file == STANDARD_INPUT else open_regular(file))
        try:
            yield unpacked(raw, "standard input" if file == STANDARD_INPUT else str(file))
        finally:
            if file != STANDARD_INPUT:
                raw.close()
    except OSError as error:
        hint = "; to explain an error's text, pass it on standard input: ullage explain -" if " " in str(file) else ""
        raise UsageError(f"{shortened(file)} cannot be read: {error.strerror or error}{hint}") from None
