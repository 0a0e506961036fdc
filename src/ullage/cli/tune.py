"""`ullage tune`: which allocator settings suit this run?"""

from typing import Annotated, Final

import typer

from ullage.cli.command import Json, Page
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
    "ullage tune oom.pickle (what would have let it through?)\n\n"
    "ullage tune snapshot.pickle --capacity 10GiB (does it fit there, with which settings?)\n\n"
    "ullage tune snapshot.pickle --torch-version 2.8 --html page.html\n\n"
    "[bold]To record one[/] torch.cuda.memory._record_memory_history() at the start of the process, and "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') at the end, or where the error is caught.\n\n"
    f"{exit_codes('tune')}"
)


def tune(
    file: SnapshotFile,
    device: DeviceOption = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    budget: Annotated[float, typer.Option(help="Seconds to search.")] = 20.0,
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Search the settings of PyTorch's allocator by replaying a recorded run, and print the line to paste.

    Options are tried alone, then together, as long as that helps. The least memory that the run needs is found too: in
    a little less a request fails. Nothing of the file is run, and neither torch nor a GPU is needed.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.api.tune import tune as ask
    from ullage.api.values import check_page
    from ullage.explaining.tuning.describe import describe

    check_page(html, file)
    tuning = with_progress(
        lambda progress: ask(
            file,
            device=device,
            capacity=capacity,
            alloc_conf=alloc_conf,
            torch_version=torch_version,
            budget=budget,
            progress=progress,
        )
    )
    show(describe(tuning), tuning.to_json() if as_json else None, page=html)
    raise typer.Exit(tuning.exit_code)
