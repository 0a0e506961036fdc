"""The command `ullage explain`: find out why a run ran out of memory, and which change would have prevented it."""

import ctypes
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.command import TO_RECORD, Json, Page, epilog_of
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    TorchVersionOption,
)
from ullage.cli.show import show, with_progress
from ullage.options import RUN

_LARGE_BYTES: Final = 1 << 25
_KEPT_BYTES: Final = 1 << 30
# the numbers are from glibc's malloc.h, see mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
EPILOG: Final = epilog_of(
    "ullage explain oom.pickle",
    "python train.py 2>&1 | ullage explain -",
    TO_RECORD,
    exit_codes("explain"),
    page="explain.md",
)


RunFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|FOLDER|-",
        help="A snapshot (torch.cuda.memory._dump_snapshot), a log, or an error's text, also packed (gzip, zip). With "
        "-: standard input. Or the folder of an `ullage run`, or of several runs, of which the newest is explained. "
        "Or a folder with one snapshot of each rank.",
    ),
]


def explain(
    file: RunFile,
    device: Annotated[
        str | None,
        typer.Option(
            help="GPU to explain: its number, or all. By default, the GPU that failed or reserved the most memory."
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank to explain, if the input is a folder with the snapshots of many ranks.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Where to read a folder of snapshots: local, ray, ray://HOST:PORT, slurm or slurm:partition=NAME.",
            rich_help_panel=RUN,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes that read a folder of snapshots. By default, one process for each CPU core.",
            rich_help_panel=RUN,
        ),
    ] = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = None,
    html: Page = None,
    sql: Annotated[
        Path | None,
        typer.Option(
            help="Write the snapshot's events, blocks, segments and stack frames as SQLite tables, for queries."
        ),
    ] = None,
    as_json: Json = False,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Print all details: every tested change, the segments and all notes.")
    ] = False,
) -> None:
    """Find out why a run ran out of memory, which code held the memory, and which change is proved to avoid the error.

    No code in the file is executed, and neither torch nor a GPU is needed. A snapshot is replayed on a model of
    PyTorch's allocator that gives the same result to the byte. A log or an error's text is analysed as far as its
    figures allow.
    """
    # Imported only here, because other commands do not need numpy.
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
        sys.stderr.write(
            f"ullage: explaining {run.name}, {of} in {file}; to explain another run: ullage explain {file}/NAME\n"
        )
    if sql is not None:
        sys.stderr.write(f"ullage: wrote {sql}\n")
    show(report_of(answer), answer.to_json() if as_json else None, page=html, is_whole=is_whole)
    for other in explanation.others if explanation is not None and not as_json else ():
        show(report_of(other), None, page=None, is_whole=is_whole)


# Otherwise, the kernel would zero new memory each time. For 10^6 events this saves a tenth of the time of `explain`.
def _keep_freed_memory(file: Path) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and file.is_file() and file.stat().st_size >= _LARGE_BYTES:
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, _KEPT_BYTES)
