"""The command `ullage run`: run a command with its memory recorded, and report why memory ran out."""

import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage._errors import UllageError, UsageError
from ullage.cli.progress import with_progress

if TYPE_CHECKING:
    from ullage.run_files.folder import RunFolder

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage run train.py --batch-size 8\n\n"
    "ullage run --gpu T4 train.py (on an emulated card)\n\n"
    "ullage run torchrun --nproc-per-node 2 train.py\n\n"
    "ullage run -m package.train\n\n"
    "ullage run --history always --folder evidence train.py\n\n"
    "ullage run --csv samples.csv --prometheus 9400 train.py\n\n"
    "[bold]Meanwhile[/] ullage watch. [bold]Exit code[/] and signals are the command's own."
)


def run(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option(help="Run on an emulated card, such as 'RTX 4090'.")] = None,
    count: Annotated[int, typer.Option(help="How many such cards.")] = 1,
    history: Annotated[
        str, typer.Option(help="When PyTorch records allocations with their stacks: auto, always or never.")
    ] = "auto",
    history_budget: Annotated[str, typer.Option(help="Host memory for the history, per process.")] = "64MiB",
    folder: Annotated[
        Path | None, typer.Option(help="Where to write. [default: ullage-runs/..., kept if memory ran out or grew]")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every sample into this file, as they come.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="The same as Parquet, complete at the end.")] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="[ADDRESS:]PORT", help="Answer Prometheus there. 0: any port.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing where memory did not run out.")] = False,
) -> None:
    """Run a script with its memory recorded; where it runs out, say why, and what would have let it through.

    What follows is the command: a script with its options, -m and a module, torchrun, accelerate launch. It runs
    unchanged; a report is printed under its error, and written with everything that it was made from.
    """
    from ullage.api.values import size_of
    from ullage.export.export import open_exports
    from ullage.recording.plan import HistoryMode, RecordingPlan
    from ullage.supervision.command import command_of
    from ullage.supervision.supervisor import end_alike, environment_as_given, supervise

    command = command_of(context.args)
    if history not in list(HistoryMode):
        raise UsageError(f"--history {history} is not a mode; expected one of {', '.join(HistoryMode)}")
    budget = size_of(history_budget, "--history-budget")
    assert budget is not None
    environment = environment_as_given()
    if gpu is not None:
        from ullage.emulator.emulate import emulate_in

        emulate_in(environment, gpu, count=count)
    elif count != 1:
        raise UsageError(f"--count {count} is for emulated cards; expected --gpu NAME too")
    exports = open_exports(csv=csv, parquet=parquet, prometheus=prometheus, notify=_print_line)
    place = _folder_for(folder, context.args)
    RecordingPlan(folder=place, history=HistoryMode(history), budget_bytes=budget).put_into(environment)
    ending = supervise(command, environment, on_tick=lambda: exports.update(place))
    exports.finish(place)
    has_ended_well = ending.exit_code == 0
    has_something = _report_run(place, is_quiet=quiet and has_ended_well, has_ended_well=has_ended_well)
    if folder is None and (has_ended_well or _is_empty(place)) and not has_something:
        _remove(place)
    elif not quiet:
        _print_line(f"recorded in {_shown(place)}; read it with ullage explain or ullage watch")
    end_alike(ending)


def _print_line(text: str) -> None:
    with suppress(OSError):  # the terminal is closed
        sys.stderr.write(f"ullage: {text}\n")
        sys.stderr.flush()


def _folder_for(wanted: Path | None, words: list[str]) -> Path:
    """Make the folder of the run, where files for a while are kept if this folder cannot have it."""
    is_named = wanted is not None
    if wanted is None:
        module = words[1] if words[0] == "-m" else Path(words[0]).name
        name = next((Path(word).stem for word in words if word.endswith(".py")), module)
        wanted = Path("ullage-runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise UsageError(f"--folder {wanted} exists and is not an empty folder; expected a new name")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted.absolute()
    except OSError as error:
        if is_named:
            raise UsageError(f"--folder {wanted} cannot be made: {error.strerror}; expected another") from None
    # This folder may be gone, full or not ours to write to; the script may need nothing of it.
    try:
        return Path(tempfile.mkdtemp(prefix=f"{wanted.name}-"))
    except OSError as error:
        raise UsageError(f"the folder {wanted} cannot be made: {error.strerror}; choose one with --folder") from None


def _report_run(place: Path, *, is_quiet: bool, has_ended_well: bool) -> bool:
    """Print what the run has recorded; return whether it is worth keeping."""
    from ullage.run_files.folder import read_run
    from ullage.supervision.summary import summary_of

    try:
        found = read_run(place)
    except UsageError:
        return False  # no process of it has used a card
    with suppress(OSError):  # the terminal is closed
        if found.evidence and has_ended_well:
            times = sum(process.facts.ooms for process in found.processes)
            sys.stderr.write(
                f"ullage: memory ran out {times} time{'s' if times != 1 else ''}, and the script handled it; why: "
                f"ullage explain {_shown(place)}\n"
            )
        elif found.evidence:
            report_evidence(found)
        if found.evidence or not is_quiet:
            for number, line in enumerate(summary_of(found)):
                sys.stderr.write(f"{'ullage:' if not number else '       '} {line}\n")
            sys.stderr.flush()
    return bool(found.evidence) or any(process.facts.growth for process in found.processes)


def report_evidence(found: "RunFolder") -> None:
    """Explain on standard error why memory ran out, and write the report next to the evidence."""
    from rich.console import Console

    from ullage.report.terminal import draw
    from ullage.supervision.supervisor import interruptible
    from ullage.supervision.verdict import explain_evidence, fatal_evidence, report_of, write_report

    evidence = fatal_evidence(found)
    assert evidence is not None
    try:
        with interruptible():
            explanation = with_progress(lambda progress: explain_evidence(evidence, progress=progress))
        if explanation is None:
            sys.stderr.write(f"ullage: memory ran out, and no snapshot could be written; see {evidence.folder}\n")
            return
        report = report_of(found, evidence, explanation)
        draw(report, Console(stderr=True, highlight=False))
        write_report(evidence, report)
        sys.stderr.write(
            f"ullage: {_shown(evidence.folder)} has this report as report.html, and the files it was made from\n"
        )
    except (UllageError, OSError) as error:
        sys.stderr.write(f"ullage: the evidence in {evidence.folder} could not be explained: {error}\n")


def _shown(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    except FileNotFoundError:  # the script has removed the folder that it was started in
        return path


def _is_empty(place: Path) -> bool:
    try:
        return not any(place.iterdir())
    except FileNotFoundError:  # removed by the script
        return True


def _remove(place: Path) -> None:
    """Remove a folder without anything of interest, and its parent where that is then empty."""
    with suppress(OSError):
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
        place.parent.rmdir()
