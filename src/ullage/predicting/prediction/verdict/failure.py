"""Why there is no verdict: how a process ended that told no result, and how a script failed, as errors of ours."""

import re
import signal
import sysconfig
from pathlib import Path
from typing import Final

import ullage.base.errors
from ullage.base.errors import EmulationError, ScriptError, ScriptKilledError, UllageError, ValuesError
from ullage.gpu.emulator.torch_build import has_code_for
from ullage.gpu.tracing.source import is_users
from ullage.predicting.prediction.command.words import clearing
from ullage.predicting.prediction.data.run_result import Outcome, RunResult
from ullage.predicting.prediction.process.listener import ChildReport
from ullage.predicting.prediction.ranks.lone_post import LARGEST_TEAM
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict.reason import deciding

_TAIL_LINES: Final = 15
_PLACES_SHOWN: Final = 3
_NOT_ASKED: Final = (
    "If it comes of what {} ranks gather or reduce: that was taken to be this rank's own, as it runs alone; "
    f"of at most {LARGEST_TEAM} ranks each is asked"
)
_OF_THE_SCRIPT: Final = frozenset(
    ("AttributeError", "FileNotFoundError", "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
)
"""The errors that no number of another rank's would cure."""
_TRITON: Final = (
    "Triton, which torch.compile uses, builds C code when a script runs, beside a real card as well, and this machine "
    "has"
)
_WITHOUT_IT: Final = "or set TORCHDYNAMO_DISABLE=1 to have the script run without torch.compile"


def result_of(request: Request, told: ChildReport) -> RunResult:
    """Return the result of a process that has told one.

    Raises:
        UllageError: it has told none, or what it ran on is not what it should be.
    """
    if told.refused is not None:
        # Errors of other modules than that one, such as of a setting or a file, are plain errors here.
        error: type[UllageError] = getattr(ullage.base.errors, told.refused.type, UllageError)
        raise error(told.refused.text)
    if told.broken is not None:
        raise EmulationError(
            f"ullage itself failed while it measured {request.name}; please report this:\n{told.broken}"
        )
    result, gpu = told.result, request.gpu
    if result is None:
        kind = ScriptKilledError if told.exit_code == -signal.SIGKILL and not told.hung else ScriptError
        raise kind((_command_text if request.is_command else _death_text)(request, told) + _said(told))
    if not has_code_for(gpu.compute_capability, result.architectures):
        raise EmulationError(
            f"torch {result.torch} has no code for {gpu.architecture}, so a real {gpu.short_name} would refuse its "
            f"first kernel (this build has {', '.join(result.architectures)}); install a torch that still supports "
            "the card"
        )
    return result


def lacks_others(request: Request, result: RunResult) -> bool:
    """Tell whether a rank may have failed as its own numbers stood for those of others, which can be asked."""
    may_ask = request.has_lone_ranks and not request.asks_all and not result.outcome.is_of_system
    return may_ask and result.outcome.type not in _OF_THE_SCRIPT and 1 < result.largest_not_asked <= LARGEST_TEAM


def failure_of(request: Request, result: RunResult, told: ChildReport) -> ScriptError:
    """Return the error of a script that failed for another reason than memory."""
    text = _error_text(request, result.outcome, told)
    if result.largest_not_asked > LARGEST_TEAM and result.outcome.type not in _OF_THE_SCRIPT:
        text = f"{text}\n{_NOT_ASKED.format(result.largest_not_asked)}"
    places = deciding(result.reads, "drawn", "unknown")
    if not places or result.outcome.is_of_system:
        return ScriptError(text)
    return ValuesError(
        f"{text}\nThis came after values were read that an emulated card does not have "
        f"({', '.join(places[:_PLACES_SHOWN])}): it is likely the emulation's, not your script's; "
        "--values-seed draws others, --values all computes everything on the host"
    )


def _death_text(request: Request, told: ChildReport) -> str:
    """Say how a process ended that told no result."""
    name, code = request.name, told.exit_code or 0
    if told.hung and not told.started:
        return f"the process for {name} did not start within two minutes"
    if told.hung:
        return (
            f"{name} did not end after {request.limit_seconds:g} s and could not be stopped: it is busy outside of "
            "Python or handles every error; give it longer with --seconds, or find where it hangs"
        )
    if code == -signal.SIGKILL:
        return (
            f"{name} was killed, or closed what ullage listens to; if this machine ran out of memory, give it more: "
            "tensors on the CPU are real"
        )
    if code < 0:
        known = {int(number): number.name for number in signal.Signals}
        return f"{name} ended by signal {known.get(-code, -code)}{_crash_place(told.output)}"
    return (
        f"{name} ended with exit code {code} and without a result: it left Python, or became another program, which is "
        "not measured"
    )


def _command_text(request: Request, told: ChildReport) -> str:
    """Say how a command ended in which no process did anything on the card."""
    name, code = request.name, told.exit_code or 0
    if told.hung:
        return f"{name} did not end after {request.limit_seconds:g} s; give it longer with --seconds"
    if left_out := clearing([str(request.script), *request.arguments]):
        return (
            f"{name} ended, and nothing of it was measured: {left_out} leaves out the variables of the environment "
            "that ullage measures with; expected the command without that option"
        )
    if code:
        how = (
            f"ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended with exit code {code}"
        )
        return f"{name} {how}, and no process of it did anything on the card"
    return (
        f"{name} ended, and no process of it did anything on the card: nothing that it started with this Python trained"
    )


def _crash_place(output: str) -> str:
    """The user's line in what Python's faulthandler wrote, innermost first."""
    for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', output, re.MULTILINE):
        if is_users(file):
            return f" at line {line} of {file}"
    return ""


def _error_text(request: Request, outcome: Outcome, told: ChildReport) -> str:
    place = f" at line {outcome.line} of {outcome.file}" if outcome.line else ""
    if outcome.exit_code is not None:
        return f"{request.name} exited with code {outcome.exit_code}{place}{_said(told)}"
    if missing := missing_tool(outcome.text):
        return f"{request.name} cannot go on{place}: {missing}"
    said = outcome.text.strip()
    text = f": {said}" if said else ""
    notes = "".join(f"\n({note})" for note in told.result.notes) if told.result else ""
    hint = f"\n({outcome.hint})" if outcome.hint else ""
    printed = f"\nWhat was printed last{_said(told).removeprefix('; it said')}" if outcome.is_of_child else ""
    return f"{request.name} raised {outcome.type}{place}{text}\n{outcome.traceback}{notes}{hint}{printed}"


def _said(told: ChildReport) -> str:
    # Of the faulthandler's words only the first line is the user's business; the place is told apart.
    text = told.output.partition("\nThread 0x")[0].partition("\nCurrent thread 0x")[0]
    tail = "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
    return f"; it said:\n{tail}" if tail else ""


def missing_tool(error: str) -> str | None:
    """Say what Triton misses on this machine, and what to do, where the text of a script's error means that; else None.

    Triton builds C code on the machine that launches its kernels, on an emulated card as beside a real one. What else
    may go wrong with a build is not known here.
    """
    if "Failed to find C compiler" in error:
        return f"{_TRITON} no C compiler; install gcc, or name a compiler in CC, {_WITHOUT_IT}"
    if "CalledProcessError" in error and "triton" in error:
        headers = Path(sysconfig.get_path("include")) / "Python.h"
        if not headers.exists():
            return f"{_TRITON} no headers of its Python ({headers}); install them (Debian: python3-dev), {_WITHOUT_IT}"
    return None
