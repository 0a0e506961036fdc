"""`ullage diff`: what grew from one run to the other?"""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import Json
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import DeviceOption, TorchVersionOption
from ullage.cli.show import show

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage diff monday.pickle tuesday.pickle\n\n"
    "ullage diff before.pickle after.pickle --at peak (each run when it held most)\n\n"
    "ullage diff step_10.pickle step_20.pickle --json\n\n"
    "[bold]To record one[/] torch.cuda.memory._record_memory_history() at the start, and "
    "torch.cuda.memory._dump_snapshot('monday.pickle') where you want to look.\n\n"
    f"{exit_codes('diff')}"
)


def diff(
    before: Annotated[Path, typer.Argument(help="The first snapshot (torch.cuda.memory._dump_snapshot()); gzip too.")],
    after: Annotated[Path, typer.Argument(help="The second.")],
    at: Annotated[str, typer.Option(help="end: when they were taken; peak: when each held most.")] = "end",
    device: DeviceOption = None,
    torch_version: TorchVersionOption = None,
    html: Annotated[Path | None, typer.Option(help="Write a page, which needs no network.")] = None,
    as_json: Json = False,
) -> None:
    """Say what grew between two snapshots, by your own source lines: new, gone, moved; in bytes and in blocks.

    Lines that moved because a file was edited are found again. Several cards are added up unless --device takes one.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.api.diff import diff as ask
    from ullage.api.values import check_page
    from ullage.explaining.difference.describe import describe

    check_page(html, before, after)
    difference = ask(before, after, at=at, device=device, torch_version=torch_version)
    show(describe(difference), difference.to_json() if as_json else None, page=html)
