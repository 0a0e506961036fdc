"""The command `ullage diff`: find the source lines that hold more memory in one snapshot than in another."""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import TO_RECORD, Json, epilog_of
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import DeviceOption, TorchVersionOption
from ullage.cli.show import show

EPILOG: Final = epilog_of(
    "ullage diff monday.pickle tuesday.pickle",
    "ullage diff before.pickle after.pickle --at peak",
    TO_RECORD,
    exit_codes("diff"),
    page="explain.md",
)


def diff(
    before: Annotated[
        Path, typer.Argument(help="The first snapshot (torch.cuda.memory._dump_snapshot()), packed with gzip or not.")
    ],
    after: Annotated[Path, typer.Argument(help="The second snapshot.")],
    at: Annotated[
        str,
        typer.Option(
            help="Point in time to compare: end (when the snapshots were taken) or peak (most allocated memory)."
        ),
    ] = "end",
    device: DeviceOption = None,
    torch_version: TorchVersionOption = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page. The page needs no network.")] = None,
    as_json: Json = False,
) -> None:
    """Find the source lines that hold more memory in one snapshot than in another.

    For each of your source lines, the report lists new, freed and moved memory, in bytes and in blocks. Lines that
    moved because a file was edited are matched. The sum over all GPUs is compared, unless --device selects one GPU.
    """
    # Imported only here, because other commands do not need numpy.
    from ullage.api.diff import diff as ask
    from ullage.api.values import check_page
    from ullage.explaining.difference.describe import describe

    check_page(html, before, after)
    difference = ask(before, after, at=at, device=device, torch_version=torch_version)
    show(describe(difference), difference.to_json() if as_json else None, page=html)
