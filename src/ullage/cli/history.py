"""Parameters of the commands that read a recorded run."""

from pathlib import Path
from typing import Annotated

import typer

from ullage.options import RUN

SnapshotFile = Annotated[
    Path, typer.Argument(help="A snapshot that torch.cuda.memory._dump_snapshot() wrote, packed with gzip or not.")
]
DeviceOption = Annotated[
    int | None,
    typer.Option(help="Number of the GPU to analyse. By default, the GPU that failed or reserved the most memory."),
]
CapacityOption = Annotated[
    str | None,
    typer.Option(
        help="Most memory that the allocator can reserve, such as 10GiB. By default, the limit of the recorded run."
    ),
]
AllocConfOption = Annotated[
    str | None,
    typer.Option(help="Allocator settings (PYTORCH_CUDA_ALLOC_CONF) of the recorded run.", rich_help_panel=RUN),
]
TorchVersionOption = Annotated[
    str | None,
    typer.Option(
        help="Version of torch that recorded the file, such as 2.12. By default the version in the file, or 2.11.",
        rich_help_panel=RUN,
    ),
]
