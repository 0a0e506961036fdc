"""Run programs in processes that are forked from one that has imported torch: on the CPU, or on an emulated card.

How a program is run: "cpu"; "drawn": values that nobody knows are drawn from a seed; "all": everything is computed.
"""

import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ullage

CPU, DRAWN, ALL = "cpu", "drawn", "all"
CARD: Final = "A100"
SECONDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the values of one run have decided."""

    sizes: dict[str, list[float]] = field(default_factory=dict)
    """By what they are sizes of, in the order of the run."""
    peak_bytes: int = 0
    reads: list[list[Any]] = field(default_factory=list)
    """Line, kind, operation, certainty and how many."""
    failures: dict[str, str] = field(default_factory=dict)
    error: str = ""


def load() -> None:
    """Emulate a card and import torch. On the CPU too: its libraries of CUDA need not be installed."""
    ullage.emulate(CARD, values="off")
    import torch

    torch.set_num_threads(1)


def run(program: str, how: str, *, seed: int = 0, data_seed: int = 0, routing: str = DRAWN) -> Run:
    """Run a program in a process of its own, after `load`."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            signal.alarm(SECONDS)
            found = _run_here(program, how, seed=seed, data_seed=data_seed, routing=routing)
        except BaseException as error:  # whatever a program raises is told
            found = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
        with os.fdopen(writer, "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return Run(**json.loads(text)) if text else Run(error=f"ended with status {status}")


def _run_here(program: str, how: str, *, seed: int, data_seed: int, routing: str) -> dict[str, Any]:
    import torch
    from programs import PROGRAMS

    from ullage.gpu.values.choice import ValuesChoice
    from ullage.gpu.values.start import current

    with open(os.devnull, "w") as nothing:  # what libraries say
        os.dup2(nothing.fileno(), 1)
        if "VERBOSE" not in os.environ:
            os.dup2(nothing.fileno(), 2)
    mode = {CPU: "off", DRAWN: "on", ALL: "all"}[how]
    choice = ValuesChoice(mode=mode, seed=seed, routing=routing)
    home: Any = sys.modules["ullage.gpu.emulator.emulate"]  # the package has a function of this name
    home._give_values(replace(home._current, values=choice), torch)
    torch.manual_seed(data_seed)
    sizes: dict[str, list[float]] = {}
    PROGRAMS[program]("cpu" if how == CPU else "cuda", lambda name, size: sizes.setdefault(name, []).append(size))
    found: dict[str, Any] = {"sizes": sizes}
    if how != CPU:
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        found["reads"] = [
            [str(read.line), str(read.kind), read.operation, read.certainty.name, count]
            for read, count in current().reads.counts.items()
        ]
        found["failures"] = current().evaluation.failures
    return found
