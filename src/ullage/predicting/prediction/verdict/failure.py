"""Create the exceptions for runs that end without a result or with an error of the script."""

import re
import signal
import sysconfig
from pathlib import Path
from typing import Final

import ullage.base.errors
from ullage.base.errors import EmulationError, ScriptError, ScriptKilledError, UllageError, ValuesError
from ullage.base.long_text import without_middle
from ullage.gpu.emulator.torch_build import has_code_for
from ullage.gpu.tracing.source import is_users
from ullage.predicting.prediction.data.run_result import Outcome, RunResult
from ullage.predicting.prediction.process.listener import ChildReport
from ullage.predicting.prediction.ranks.lone_post import LARGEST_TEAM
from ullage.predicting.prediction.request import CLOSED_EXIT_CODE, Request
from ullage.predicting.prediction.verdict.reason import deciding

_TAIL_LINES: Final = 15
_PLACES_SHOWN: Final = 3
_NOT_ASKED: Final = (
    "If the error comes from values that {} ranks gather or reduce: this rank ran alone, so its own values replaced "
    f"theirs; the values of other ranks are used only in groups of at most {LARGEST_TEAM} ranks"
)
# After these exceptions, a distributed script did not fail because of missing values of other ranks.
_OF_THE_SCRIPT: Final = frozenset(
    ("AttributeError", "FileNotFoundError", "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
)
_TRITON: Final = (
    "Triton, which torch.compile uses, builds C code when a script runs (also with a real GPU), and this machine has"
)
_WITHOUT_IT: Final = "or set TORCHDYNAMO_DISABLE=1 to run the script without torch.compile"


def result_of(request: Request, told: ChildReport) -> RunResult:
    """Return the result of the script's process.

    Raises:
        UllageError: the process sent no result, or its torch cannot run on the GPU.
    """
    if told.refused is not None:
        # Errors of modules other than `base.errors`, such as of a setting or a file, become plain errors.
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
            "the GPU"
        )
    return result


def lacks_others(request: Request, result: RunResult) -> bool:
    """Return whether a failed script may succeed if ullage runs all ranks together.

    In the failed run, ullage ran each rank without the others. At most `LARGEST_TEAM` ranks can run together.
    """
    may_ask = request.has_lone_ranks and not request.asks_all and not result.outcome.is_of_system
    return may_ask and result.outcome.type not in _OF_THE_SCRIPT and 1 < result.largest_not_asked <= LARGEST_TEAM


def failure_of(request: Request, result: RunResult, told: ChildReport) -> ScriptError:
    """Return the exception for a script that failed for another reason than too little memory."""
    text = _error_text(request, result.outcome, told)
    if result.largest_not_asked > LARGEST_TEAM and result.outcome.type not in _OF_THE_SCRIPT:
        text = f"{text}\n{_NOT_ASKED.format(result.largest_not_asked)}"
    places = deciding(result.reads, "drawn", "unknown")
    if not places or result.outcome.is_of_system:
        return ScriptError(text)
    return ValuesError(
        f"{text}\nBefore this error, the script read values that an emulated GPU does not have "
        f"({', '.join(places[:_PLACES_SHOWN])}), so the emulation probably caused it, not your script; "
        'try other random values with values_seed=, or values="all", which computes everything on the host'
    )


def _death_text(request: Request, told: ChildReport) -> str:
    name, code = request.name, told.exit_code or 0
    if told.hung and not told.started:
        return f"the process for {name} did not start within two minutes"
    if told.hung:
        return (
            f"{name} did not end after {request.limit_seconds:g} s and could not be stopped: it is busy outside of "
            "Python or handles every error; allow more time with seconds=, or find where it hangs"
        )
    if code == -signal.SIGKILL:
        return (
            f"{name} was killed, or closed the pipe that ullage reads; if this machine ran out of memory, use one with "
            "more: CPU tensors need real memory"
        )
    if code == CLOSED_EXIT_CODE:
        return (
            f"{name} closed the pipe that ullage reads, so ullage did not receive the result: a script must not close "
            "file descriptors that it did not open, for example with os.closerange"
        )
    if code < 0:
        known = {int(number): number.name for number in signal.Signals}
        return f"{name} ended by signal {known.get(-code, -code)}{_crash_place(told.output)}"
    return (
        f"{name} ended with exit code {code} and without a result: it left Python without cleanup, or replaced itself "
        "with another program, which is not measured"
    )


def _command_text(request: Request, told: ChildReport) -> str:
    name, code = request.name, told.exit_code or 0
    if told.hung:
        return f"{name} did not end after {request.limit_seconds:g} s; allow more time with seconds="
    if told.unreached:
        return f"{name} ended, and none of its processes was measured: {told.unreached}"
    if code:
        how = (
            f"ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended with exit code {code}"
        )
        return f"{name} {how}, and none of its processes used the GPU"
    return f"{name} ended, and none of its processes used the GPU: it started no training with this Python"


def _crash_place(output: str) -> str:
    for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', output, re.MULTILINE):
        if is_users(file):
            return f" at line {line} of {file}"
    return ""


def _error_text(request: Request, outcome: Outcome, told: ChildReport) -> str:
    place = f" at line {outcome.line} of {outcome.file}" if outcome.line else ""
    if outcome.exit_code is not None:
        return f"{request.name} exited with code {outcome.exit_code}{place}{_unreached(told)}{_said(told)}"
    if missing := missing_tool(outcome.text):
        return f"{request.name} cannot continue{place}: {missing}"
    said = outcome.text.strip()
    text = f": {said}" if said else ""
    notes = "".join(f"\n({note})" for note in told.result.notes) if told.result else ""
    hint = f"\n({outcome.hint})" if outcome.hint else ""
    printed = (
        f"{_unreached(told)}\nThe last output was{_said(told).removeprefix('; its last output was')}"
        if outcome.is_of_child
        else ""
    )
    return f"{request.name} raised {outcome.type}{place}{text}\n{outcome.traceback}{notes}{hint}{printed}"


def _unreached(told: ChildReport) -> str:
    return f" ({told.unreached})" if told.unreached else ""


def _said(told: ChildReport) -> str:
    # Leave out the thread stacks that faulthandler prints; the user's line is reported separately.
    text = told.output.partition("\nThread 0x")[0].partition("\nCurrent thread 0x")[0]
    tail = without_middle("\n".join(text.rstrip().splitlines()[-_TAIL_LINES:]))
    return f"; its last output was:\n{tail}" if tail else ""


def missing_tool(error: str) -> str | None:
    """Return which tool Triton did not find on this machine, and how to install the tool.

    Return None if the error has another cause. Triton needs a C compiler even for an emulated GPU, because it compiles
    C code to launch kernels.
    """
    if "Failed to find C compiler" in error:
        return f"{_TRITON} no C compiler; install gcc, or name a compiler in CC, {_WITHOUT_IT}"
    if "CalledProcessError" in error and "triton" in error:
        headers = Path(sysconfig.get_path("include")) / "Python.h"
        if not headers.exists():
            return f"{_TRITON} no Python headers ({headers}); install them (Debian: python3-dev), {_WITHOUT_IT}"
    return None
