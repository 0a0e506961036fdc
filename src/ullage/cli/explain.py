"""`ullage explain`: why did it run out of memory, and what would have prevented it?"""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.base.errors import UsageError
from ullage.base.garbage_collector import without_collections
from ullage.cli import options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    TorchVersionOption,
)
from ullage.cli.progress import with_progress
from ullage.cli.show import show

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
    html: options.Page = None,
    sql: Annotated[
        Path | None,
        typer.Option(help="Write events, blocks, segments and stacks as tables of SQLite, to ask them yourself."),
    ] = None,
    as_json: options.Json = False,
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
    from ullage.api.text import is_text
    from ullage.api.values import check_page, check_tables

    check_page(html, file)
    check_tables(sql, file, *((html,) if html is not None else ()))
    options: dict[str, object]
    if file.is_dir() and rank is None:
        options = {"--device": device, "--capacity": capacity, "--alloc-conf": alloc_conf, "--sql": sql}
        if _explain_ranks(file, options | {"--torch-version": torch_version}, html, on, workers, as_json, is_whole):
            return
        _explain_run(file, options | {"--torch-version": torch_version}, html, as_json=as_json, is_whole=is_whole)
        return
    if rank is None and is_text(file):
        options = {"--device": device, "--capacity": capacity, "--alloc-conf": alloc_conf, "--sql": sql}
        _explain_text(file, options | {"--torch-version": torch_version}, html, as_json=as_json)
        return
    with without_collections():  # of a large file the search for cycles is a twentieth of the time
        explanation = with_progress(
            lambda progress: ask(
                file,
                device=device,
                rank=rank,
                capacity=capacity,
                alloc_conf=alloc_conf,
                torch_version=torch_version,
                sql=sql,
                picture=html is not None,
                progress=progress,
            )
        )
    from ullage.explaining.analysis.describe import describe

    if sql is not None:
        sys.stderr.write(f"ullage: wrote {sql}\n")
    answer = explanation.to_json() if as_json else None
    show(describe(explanation), answer, page=html, is_whole=is_whole)
    for other in explanation.others if not as_json else ():
        show(describe(other), None, page=None, is_whole=is_whole)


def _explain_ranks(
    folder: Path,
    options: dict[str, object],
    html: Path | None,
    on: str | None,
    workers: int | None,
    as_json: bool,
    is_whole: bool,
) -> bool:
    """Explain a folder with the snapshots of many ranks; return False where it is none."""
    from ullage.explaining.fleet.describe import describe
    from ullage.explaining.fleet.fleet import engine_of, explain_fleet, folder_of_ranks

    files = folder_of_ranks(folder)
    if not files:
        return False
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} is for one snapshot; {folder} has those of {len(files):,} ranks: add --rank N")
    with engine_of(on, workers) as engine:
        fleet = with_progress(
            lambda progress: explain_fleet(
                folder, files, workers=workers, engine=engine, with_picture=html is not None, progress=progress
            )
        )
    show(describe(fleet), fleet.to_json() if as_json else None, page=html, is_whole=is_whole)
    return True


def _explain_run(folder: Path, options: dict[str, object], html: Path | None, *, as_json: bool, is_whole: bool) -> None:
    """Explain a recorded run: why memory ran out, on which rank, and how that rank differs from the others."""
    from ullage.report.report import Remarks, Report, Tone
    from ullage.running.supervision.summary import summary_of
    from ullage.running.supervision.verdict import explain_evidence, fatal_evidence, find_run, report_of

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} is for a snapshot; the folder of a run has it recorded: leave it out")
    run, count = find_run(folder)
    if count:
        of = f"the newest of {count} runs" if count > 1 else "the only run"
        sys.stderr.write(
            f"ullage: explaining {run.folder.name}, {of} in {folder}; for another: ullage explain {folder}/NAME\n"
        )
    evidence = fatal_evidence(run)
    explanation = (
        with_progress(lambda progress: explain_evidence(evidence, progress=progress)) if evidence is not None else None
    )
    if evidence is None or explanation is None:
        summary = summary_of(run)
        why = "memory did not run out" if evidence is None else f"memory ran out, {evidence.folder} has no snapshot"
        ends = {process.facts.state for process in run.processes}
        grows = any(process.facts.growth for process in run.processes)
        headline = "GROWS" if grows else "NOT ENDED, OR KILLED" if "runs" in ends else "DID NOT RUN OUT"
        show(
            Report(
                headline=headline,
                tone=Tone.UNSURE,
                subject=str(run.folder),
                sentence=f"In this run {why}.",
                sections=(Remarks(title="The run", items=tuple(summary)),),
            ),
            {"summary": summary} if as_json else None,
            page=html,
        )
        return
    report = report_of(run, evidence, explanation)
    answer = explanation.to_json() | {"run": {"evidence": str(evidence.folder), "summary": summary_of(run)}}
    show(report, answer if as_json else None, page=html, is_whole=is_whole)


def _explain_text(file: Path, options: dict[str, object], html: Path | None, *, as_json: bool) -> None:
    """Explain a log or an error's text."""
    from ullage.api.explain import explain_text
    from ullage.explaining.analysis.text.describe import describe_text

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} is for a snapshot, which can be replayed; {file} is text: leave it out")
    explained = with_progress(lambda progress: explain_text(file, progress))
    show(describe_text(explained), explained.explanation.to_json() if as_json else None, page=html)
