"""What a command was given to explain: told once, by what is there, before anything is read whole."""

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.api.text import STANDARD_INPUT, looks_like_text, opened
from ullage.base.errors import UsageError
from ullage.explaining.fleet.rank_files import RankFile, folder_of_ranks
from ullage.recorded.snapshot.file import is_archive

if TYPE_CHECKING:
    from ullage.recorded.snapshot.snapshot import Snapshot

_BEGINNING_BYTES = 4096


class InputKind(StrEnum):
    """The kinds of input; the text is how an error calls one."""

    SNAPSHOT = "a snapshot"
    """A snapshot in any form, packed too; and what is neither that nor text, which the reader of snapshots refuses."""
    RANKS = "a folder with snapshots of several ranks"
    RUN = "the folder of a run"
    """A folder that `ullage run` has left, or one with several of them; and any other folder, which is refused as
    that."""
    TEXT = "text"
    """A log, an error's text or a saved notebook; packed too."""
    ARCHIVE = "an archive"
    """A file in a form that is not unpacked here (tar, xz, zstd, ...)."""
    STANDARD_INPUT = "standard input"
    """Standard input, or a pipe: text that can be read only once."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input and its kind."""

    path: Path
    kind: InputKind
    ranks: tuple[RankFile, ...] = ()
    """The snapshots of a folder of ranks."""


def input_of(file: Path) -> Input:
    """Return the kind of an input, by its content and not by its name.

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
    return Input(file, InputKind.TEXT if looks_like_text(beginning) else InputKind.SNAPSHOT)


def load_recorded(file: Path) -> "Snapshot":
    """Load the snapshot that a command needs which reads nothing else.

    Raises:
        SnapshotError: the file cannot be read, or is an input of another kind, which the error names.
    """
    from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot

    try:
        return load_snapshot(file)
    except SnapshotError:
        kind = None
        with suppress(UsageError, OSError, ValueError):  # what cannot be read was told already
            kind = input_of(file).kind
        if kind not in (InputKind.TEXT, InputKind.RANKS, InputKind.RUN):
            raise
        raise SnapshotError(
            f"{file} is not a snapshot but {kind.value}, which ullage explain reads; expected what "
            "torch.cuda.memory._dump_snapshot() writes"
        ) from None
