"""`ullage explain`: why did it run out of memory, and what would have prevented it?"""

import ctypes
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import Json, Page
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    TorchVersionOption,
)
from ullage.cli.show import show, with_progress

_LARGE_BYTES: Final = 1 << 25
_KEPT_BYTES: Final = 1 << 30
# glibc's malloc.h: mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage explain oom.pickle\n\n"
    "ullage explain train.log.gz (a log of any length, or an error's text)\n\n"
    "python train.py 2>&1 | ullage explain -\n\n"
    "ullage explain snapshot.pickle.gz --html page.html\n\n"
    "ullage explain snapshot.pickle --sql run.sqlite (its tables, for questions of your own)\n\n"
    "ullage explain ullage-runs (the newest run in it)\n\n"
    "ullage explain snapshots/ (one of each rank: which differ, and why; --rank 7 for one of them)\n\n"
    "ullage explain snapshot.pickle --capacity 10GiB (would this run fit there?)\n\n"
    "[bold]To record one[/] torch.cuda.memory._record_memory_history() at the start, and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught.\n\n"
    f"{exit_codes('explain')}"
)


RunFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|FOLDER|-",
        help="A snapshot (torch.cuda.memory._dump_snapshot), a log, or an error's text; gzip or zip too. -: "
        "standard input. Or the folder of an `ullage run`; of ullage-runs the newest. Or of ranks' snapshots.",
    ),
]


def explain(
    file: RunFile,
    device: Annotated[
        str | None,
        typer.Option(help="Which card: its number, or all. [default: the one that failed or reserved most]"),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Of a folder with the snapshots of many ranks: this one's.")] = None,
    on: Annotated[
        str | None, typer.Option(help="Where to read such a folder: local, ray, ray://HOST:PORT, slurm, ...")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many processes read such a folder. [default: one for each core]")
    ] = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    html: Page = None,
    sql: Annotated[
        Path | None,
        typer.Option(help="Write events, blocks, segments and stacks as tables of SQLite, to ask them yourself."),
    ] = None,
    as_json: Json = False,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Print every change that was tried, the segments and all notes.")
    ] = False,
) -> None:
    """Say why a run ran out of memory, who held it, and which change is proved to let it through.

    Nothing of the file is run, and neither torch nor a GPU is needed. A snapshot is replayed on a model of PyTorch's
    allocator that is equal to it byte for byte; a log or an error's text is read as far as its figures go.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.api.explain import explain as ask
    from ullage.api.show import report_of
    from ullage.api.values import check_page, check_tables
    from ullage.explaining.analysis.explain import Explanation

    check_page(html, file)
    check_tables(sql, file, *((html,) if html is not None else ()))
    _keep_freed_memory(file)
    answer = with_progress(
        lambda progress: ask(
            file,
            device=device,
            rank=rank,
            on=on,
            workers=workers,
            capacity=capacity,
            alloc_conf=alloc_conf,
            torch_version=torch_version,
            sql=sql,
            picture=html is not None,
            progress=progress,
        )
    )
    explanation = answer if isinstance(answer, Explanation) else None
    run = explanation.run if explanation is not None else None
    if run is not None and run.beside:
        of = f"the newest of {run.beside} runs" if run.beside > 1 else "the only run"
        sys.stderr.write(f"ullage: explaining {run.name}, {of} in {file}; for another: ullage explain {file}/NAME\n")
    if sql is not None:
        sys.stderr.write(f"ullage: wrote {sql}\n")
    show(report_of(answer), answer.to_json() if as_json else None, page=html, is_whole=is_whole)
    for other in explanation.others if explanation is not None and not as_json else ():
        show(report_of(other), None, page=None, is_whole=is_whole)


def _keep_freed_memory(file: Path) -> None:
    """Have the C library keep what is freed while a large file is read: the kernel zeroes what it hands out anew.

    Of 10^6 events `explain` takes a tenth less time so. A C library without `mallopt` does as it always does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and file.is_file() and file.stat().st_size >= _LARGE_BYTES:
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, _KEPT_BYTES)
