"""Options of every command that reads a recorded run."""

from pathlib import Path
from typing import Annotated

import typer

SnapshotFile = Annotated[
    Path, typer.Argument(help="A snapshot that torch.cuda.memory._dump_snapshot() wrote; gzip too.")
]
DeviceOption = Annotated[
    int | None, typer.Option(help="The GPU whose history to read. By default the one that failed, or reserved most.")
]
CapacityOption = Annotated[str | None, typer.Option(help="What the allocator could reserve at most.")]
AllocConfOption = Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF of the run.")]
TorchVersionOption = Annotated[
    str | None,
    typer.Option(
        help="The torch version that recorded it, such as 2.12. By default 2.11, unless the file says otherwise."
    ),
]
