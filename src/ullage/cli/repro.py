"""The command `ullage repro`: reproduce an out-of-memory error by a script of a few lines."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import Json, epilog_of
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    DeviceOption,
    SnapshotFile,
    TorchVersionOption,
)
from ullage.cli.show import show, with_progress

EPILOG: Final = epilog_of(
    "ullage repro oom.pickle -o repro.py",
    "python repro.py expandable_segments:True",
    "The written script exits with 0 if it reproduced the failure. Any GPU with the same memory or more will do.",
    exit_codes("repro"),
    page="explain.md",
)


def repro(
    file: SnapshotFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="Path of the script to write.")],
    device: DeviceOption = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    budget: Annotated[float, typer.Option(help="Time limit in seconds for reducing the script to fewer lines.")] = 30.0,
    keep_sizes: Annotated[
        bool,
        typer.Option(
            "--keep-sizes",
            help="Keep the exact sizes of allocations: omit allocations, but do not merge them or round their sizes.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Reproduce an out-of-memory error of a recorded run by a script of a few lines.

    The script contains torch.empty and del, and none of your code, names or paths. Use the script in a bug report, or
    to try allocator settings. `ullage repro` omits an allocation only if the same request still fails in the same way.
    It checks this on a model of PyTorch's allocator that gives the same result to the byte.
    """
    # Imported only here, because other commands do not need numpy.
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
