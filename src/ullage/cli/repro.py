"""`ullage repro`: the same failure as a script of a few lines."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import Json
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    DeviceOption,
    SnapshotFile,
    TorchVersionOption,
)
from ullage.cli.show import show, with_progress

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage repro oom.pickle -o repro.py\n\n"
    "python repro.py (on any card with the room; exit code 0: reproduced)\n\n"
    "python repro.py expandable_segments:True (does it fail with that, too?)\n\n"
    "ullage repro oom.pickle -o repro.py --keep-sizes (closer to the run: only leaves allocations out)\n\n"
    "ullage repro snapshot.pickle -o repro.py --capacity 10GiB (what would fail there?)\n\n"
    f"{exit_codes('repro')}"
)


def repro(
    file: SnapshotFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The script to write.")],
    device: DeviceOption = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    budget: Annotated[float, typer.Option(help="Seconds for making it small.")] = 30.0,
    keep_sizes: Annotated[
        bool, typer.Option("--keep-sizes", help="Only leave allocations out; neither merge them nor round sizes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a script of a few lines that runs out of memory as a recorded run did.

    It has torch.empty and del in it and nothing of your code, your names or your paths: for a bug report, or to try
    settings on. Every allocation that is left out was tried on a model of PyTorch's allocator that is equal to it byte
    for byte; the same failure at the same request is what has to stay.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.api.repro import repro as ask
    from ullage.explaining.reproduction.transcript import describe

    reproduction = with_progress(
        lambda progress: ask(
            file,
            output,
            device=device,
            capacity=capacity,
            alloc_conf=alloc_conf,
            torch_version=torch_version,
            budget=budget,
            keep_sizes=keep_sizes,
            progress=progress,
        )
    )
    answer = reproduction.to_json() | {"output": str(output)} if as_json else None
    show(describe(reproduction, source=str(file)), answer, page=None)
    sys.stderr.write(f"ullage: wrote {output}\n")
