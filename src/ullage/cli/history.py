"""Options of every command that reads a recorded run, and the history that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ullage._errors import UsageError
from ullage.settings import semantics_of

if TYPE_CHECKING:
    from ullage.history import History

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
