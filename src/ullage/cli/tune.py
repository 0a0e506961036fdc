"""The command `ullage tune`: find the allocator settings that suit a recorded run."""

from typing import Annotated, Final

import typer

from ullage.cli.command import TO_RECORD, Json, Page, epilog_of
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
    "ullage tune oom.pickle",
    "ullage tune snapshot.pickle --capacity 10GiB",
    TO_RECORD,
    exit_codes("tune"),
    page="which_settings.md",
)


def tune(
    file: SnapshotFile,
    device: DeviceOption = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    budget: Annotated[float, typer.Option(help="Time limit for the search, in seconds.")] = 20.0,
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Find the settings of PyTorch's allocator that suit a recorded run best.

    The recorded run is replayed under each setting. Options are tried alone, and then in combination as long as that
    helps. `ullage tune` prints the line to paste, and the least memory capacity that the run needs: with slightly less,
    a request fails. No code in the file is executed, and neither torch nor a GPU is needed.
    """
    # Imported only here, because other commands do not need numpy.
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
