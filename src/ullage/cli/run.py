"""The command `ullage run`: run a command with its memory recorded, and report why memory ran out."""

import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage.base.errors import UllageError, UsageError
from ullage.base.own_files import OwnFolder
from ullage.cli.command import epilog_of
from ullage.cli.show import with_progress
from ullage.options import GPU, RUN

if TYPE_CHECKING:
    from ullage.running.run_files.folder import RunFolder
    from ullage.running.supervision.supervisor import Ending

EPILOG: Final = epilog_of(
    "ullage run train.py --batch-size 8",
    "ullage run torchrun --nproc-per-node 2 train.py",
    "[bold]Exit code[/] the exit code of your command. Signals are passed on to your command. "
    "Use ullage watch to follow the run.",
    page="run.md",
)

_RUNS: Final = Path("ullage-runs")
_NOT_OF_NAMES: Final = re.compile(r"[^\w.+-]")
_LONGEST_NAME: Final = 60  # letters


def run(
    context: typer.Context,
    gpu: Annotated[
        str | None,
        typer.Option(help="Run on this emulated GPU, such as 'RTX 4090'. By default, run on the GPUs of this machine."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of emulated GPUs.", rich_help_panel=GPU)] = 1,
    history: Annotated[
        str, typer.Option(help="When PyTorch records allocations with their stack frames: auto, always or never.")
    ] = "auto",
    history_budget: Annotated[
        str,
        typer.Option(help="Limit on the host memory for the allocation history of each process.", rich_help_panel=RUN),
    ] = "64MiB",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the recorded files. By default ullage-runs/..., kept only if memory ran out or grew."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every memory sample to this CSV file during the run.")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Write every memory sample to this Parquet file. The file is complete when the run ends."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="Serve metrics to Prometheus at this port, or ADDRESS:PORT. Port 0 selects any free port.",
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send metrics to the OpenTelemetry collector at this URL, by OTLP over HTTP."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing unless memory runs out.")] = False,
) -> None:
    """Run a script with its memory recorded; if memory runs out, report why, and which change would have prevented it.

    The arguments after the options are the command: a script with its options, -m and a module, torchrun, or accelerate
    launch. The command runs unchanged. The report is printed after the command's own error, and saved in a folder with
    all recorded data.
    """
    from ullage.base.units import size_of
    from ullage.predicting.prediction.command.words import command_of
    from ullage.running.export.export import open_exports
    from ullage.running.recording.plan import HistoryMode, RecordingPlan
    from ullage.running.run_files.folder import shown
    from ullage.running.run_files.live import is_live
    from ullage.running.supervision.supervisor import end_alike, environment_as_given, supervise

    command = command_of(context.args, asked="ullage run")
    if history not in list(HistoryMode):
        raise UsageError(f"--history {history} is not a mode; expected one of {', '.join(HistoryMode)}")
    budget = size_of(history_budget, "history_budget")
    assert budget is not None
    environment = environment_as_given()
    if gpu is not None:
        from ullage.gpu.emulator.emulate import emulate_in

        emulate_in(environment, gpu, count=count)
    elif count != 1:
        raise UsageError(f"--count {count} is for emulated GPUs; expected --gpu NAME too")
    exports = open_exports(csv=csv, parquet=parquet, prometheus=prometheus, otlp=otlp, notify=_print_line)
    with _folder_for(folder, context.args) as place:
        plan = RecordingPlan(folder=place.path, inode=place.inode, history=HistoryMode(history), budget_bytes=budget)
        plan.put_into(environment)
        ending = supervise(command, environment, on_tick=lambda: exports.update(place.path))
        exports.finish(place.path)
        has_ended_well = ending.exit_code == 0
        if not has_ended_well:
            _report_host_memory(place, ending, with_guesses=not quiet)
        is_quiet = quiet and has_ended_well
        has_something = place.is_in_place and _report_run(place, is_quiet=is_quiet, has_ended_well=has_ended_well)
        if not place.is_in_place:
            if not place.is_removed:
                _print_line(f"the folder {place.path} was moved during the run, so a summary is missing")
        elif folder is None and (has_ended_well or not place.names()) and not has_something:
            place.remove(is_live)
        elif not quiet:
            _print_line(f"recorded in {shown(place.path)}; read it with ullage explain or ullage watch")
    end_alike(ending)


def _print_line(text: str) -> None:
    with suppress(OSError):  # the terminal is closed
        sys.stderr.write(f"ullage: {text}\n")
        sys.stderr.flush()


def _folder_for(wanted: Path | None, words: list[str]) -> OwnFolder:
    if wanted is None:
        name = name_of(words)
        # The current folder may be deleted, full or not writable, and the script may not need it.
        with suppress(OSError):
            return OwnFolder.make_unique(_RUNS.absolute(), name)
        wanted = Path(tempfile.gettempdir())
        try:
            return OwnFolder.make_unique(wanted, name)
        except OSError as error:
            raise UsageError(
                f"a folder cannot be created in {wanted}: {error.strerror}; choose one with --folder"
            ) from None
    try:
        if not wanted.is_symlink() and not wanted.exists():
            return OwnFolder.make(wanted)
        if not wanted.is_dir() or any(wanted.iterdir()):
            raise UsageError(f"--folder {wanted} exists and is not an empty folder; expected a new name")
        return OwnFolder.open(wanted)
    except OSError as error:
        raise UsageError(f"--folder {wanted} cannot be created: {error.strerror}; expected another") from None


def name_of(words: list[str]) -> str:
    """Return the folder name for a recorded run, made from the script, module or program that ran."""
    module = words[1] if words[0] == "-m" else Path(words[0]).name
    # An argument that is a whole shell command may end in .py too, but should not be shown in the name of a folder.
    name = next((Path(word).stem for word in words if word.endswith(".py") and not word.split()[1:]), module)
    from ullage.base.secrets import hidden_text

    return _NOT_OF_NAMES.sub("_", hidden_text(name))[:_LONGEST_NAME] or "run"


def _report_host_memory(place: OwnFolder, ending: "Ending", *, with_guesses: bool) -> None:
    """Print one sentence and one piece of advice if host memory, not GPU memory, probably ended the run."""
    from ullage.running.supervision.host_memory import host_memory_of

    found = None
    with suppress(UllageError, OSError):
        found = host_memory_of(place.path if place.is_in_place else None, ending, with_guesses=with_guesses)
    if found is not None:
        for line in found:
            _print_line(line)


def _report_run(place: OwnFolder, *, is_quiet: bool, has_ended_well: bool) -> bool:
    from ullage.running.run_files.folder import read_run, shown
    from ullage.running.supervision.summary import summary_of

    try:
        found = read_run(place.path)
    except UsageError:
        return False  # none of its processes used a GPU
    with suppress(OSError):  # the terminal is closed
        if found.evidence and has_ended_well:
            times = sum(process.facts.ooms for process in found.processes)
            sys.stderr.write(
                f"ullage: memory ran out {times} time{'s' if times != 1 else ''}, and the script handled it; to see "
                f"why: ullage explain {shown(place.path)}\n"
            )
        elif found.evidence:
            report_evidence(found, place)
        if found.evidence or not is_quiet:
            for number, line in enumerate(summary_of(found)):
                sys.stderr.write(f"{'ullage:' if not number else '       '} {line}\n")
            sys.stderr.flush()
    return bool(found.evidence) or any(process.facts.growth for process in found.processes)


def report_evidence(found: "RunFolder", place: OwnFolder) -> None:
    """Print a report to standard error that explains why the GPU ran out of memory.

    The same report is written into the run's folder.
    """
    from rich.console import Console

    from ullage.explaining.analysis.describe import describe
    from ullage.report.terminal import draw
    from ullage.running.run_files.folder import shown
    from ullage.running.supervision.supervisor import interruptible
    from ullage.running.supervision.verdict import explain_evidence, fatal_evidence, with_run, write_report

    evidence = fatal_evidence(found)
    assert evidence is not None
    try:
        with interruptible():
            explanation = with_progress(lambda progress: explain_evidence(evidence, progress=progress))
        if explanation is None:
            sys.stderr.write(f"ullage: memory ran out, but a snapshot could not be written; see {evidence.folder}\n")
            return
        report = describe(with_run(explanation, found, evidence))
        draw(report, Console(stderr=True, highlight=False))
        with place.folder(evidence.folder.name) as inside:
            write_report(inside, report)
        sys.stderr.write(f"ullage: {shown(evidence.folder)} contains this report as report.html, and the data for it\n")
    except (UllageError, OSError) as error:
        sys.stderr.write(f"ullage: the evidence in {evidence.folder} could not be explained: {error}\n")
