"""Options of every command that reads a recorded run, and the history that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage._errors import UsageError
from ullage.cli.values import size_of
from ullage.settings import semantics_of

if TYPE_CHECKING:
    from ullage.history import History

_LARGEST_BYTES: Final = 1 << 50

SnapshotFile = Annotated[
    Path, typer.Argument(help="A snapshot that torch.cuda.memory._dump_snapshot() wrote; gzip too.")
]
DeviceOption = Annotated[int | None, typer.Option(help="Which card's history. [default: the one with most entries]")]
CapacityOption = Annotated[str | None, typer.Option(help="What the allocator could reserve at most.")]
AllocConfOption = Annotated[str | None, typer.Option(help="PYTORCH_ALLOC_CONF of the run.")]
TorchVersionOption = Annotated[
    str | None,
    typer.Option(help="The version of torch that recorded it. [default: 2.11, if nothing speaks against it]"),
]


def semantics_given(torch_version: str | None) -> str | None:
    """Return which allocator `--torch-version` names; None where it was not given.

    Raises:
        SettingsError: the text is no version.
    """
    return semantics_of(torch_version) if torch_version is not None else None


def capacity_of(text: str | None) -> int | None:
    """Read `--capacity`.

    Raises:
        UsageError: it is no size, or none that a card has.
    """
    capacity = size_of(text, "--capacity")
    if capacity is not None and not 0 < capacity <= _LARGEST_BYTES:
        raise UsageError(
            f"--capacity {text} is no card's; expected a size such as 10GiB, up to {_LARGEST_BYTES >> 40} TiB"
        )
    return capacity


def history_of(file: Path, device: int | None) -> "History":
    """Load a snapshot and return the history of one card.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: the snapshot has no such card.
    """
    from ullage.snapshot.snapshot import load_snapshot  # numpy is not for those who ask another command

    snapshot = load_snapshot(file)
    if device is None:
        device = max(snapshot.devices, key=lambda number: (len(snapshot.devices[number]), -number))
    if device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices))
        raise UsageError(f"--device {device} has no history in {file}; expected one of {known}")
    return snapshot.devices[device]
