"""`ullage diff`: what grew from one run to the other?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage._errors import UsageError
from ullage._output import check_output
from ullage.cli.history import DeviceOption, TorchVersionOption, history_of, semantics_given
from ullage.cli.show import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ullage.history import History

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage diff monday.pickle tuesday.pickle\n\n"
    "ullage diff before.pickle after.pickle --at peak (each run when it held most)\n\n"
    "ullage diff step_10.pickle step_20.pickle --json\n\n"
    "[bold]To record one[/] torch.cuda.memory._record_memory_history() at the start, and "
    "torch.cuda.memory._dump_snapshot('monday.pickle') where you want to look.\n\n"
    "[bold]Exit code[/] 0 compared, whatever differs; 2 wrong usage or a file that cannot be read."
)


def diff(
    before: Annotated[Path, typer.Argument(help="The first snapshot (torch.cuda.memory._dump_snapshot()); gzip too.")],
    after: Annotated[Path, typer.Argument(help="The second.")],
    at: Annotated[str, typer.Option(help="end: when they were taken; peak: when each held most.")] = "end",
    device: DeviceOption = None,
    torch_version: TorchVersionOption = None,
    html: Annotated[Path | None, typer.Option(help="Write a page, which needs no network.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
) -> None:
    """Say what grew between two snapshots, by your own source lines: new, gone, moved; in bytes and in blocks.

    Lines that moved because a file was edited are found again. Several cards are added up unless --device takes one.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.difference.describe import describe
    from ullage.difference.difference import Moment, difference_of

    if at not in (moments := [moment.value for moment in Moment]):
        raise UsageError(f"--at {at!r} is no moment of a snapshot; expected one of {', '.join(moments)}")
    if html is not None:
        check_output("--html", html, inputs=(before, after))
    semantics = semantics_given(torch_version)

    histories = [_histories_of(file, device) for file in (before, after)]
    difference = difference_of(*histories, sources=(str(before), str(after)), moment=Moment(at), semantics=semantics)
    show(describe(difference), difference.to_json() if as_json else None, page=html)


def _histories_of(file: Path, device: int | None) -> "Sequence[History]":
    """One card's history, or those of all."""
    if device is not None:
        return [history_of(file, device)]
    from ullage.snapshot.snapshot import load_snapshot  # numpy is not for those who ask another command

    return list(load_snapshot(file).devices.values())
