"""Begin in a child process what its parent does: emulate the same card, be measured, or record."""

import importlib.util
import signal
import sys
from pathlib import PurePath
from types import ModuleType
from typing import Final

_COMPILE_WORKER: Final = ("_inductor", "compile_worker", "__main__.py")
"""The end of the path of the script that torch.compile starts as its worker."""


def emulate() -> None:
    """Emulate the card of the process that started this one. Called by `sitecustomize`, before the process's own code.

    Raises:
        Exception: it cannot be emulated, for whatever reason.
    """
    if importlib.util.find_spec("torch") is None:
        return  # an interpreter without torch needs no card
    from ullage.base.errors import TorchMissingError
    from ullage.gpu.emulator.emulate import inherit

    try:  # noqa: SIM105
        inherit()
    except TorchMissingError:
        pass  # a build without CUDA uses no card
    if PurePath(*sys.orig_argv[1:2]).parts[-len(_COMPILE_WORKER) :] == _COMPILE_WORKER:
        # It is ended with the process that it works for (`tracing.compiled`), and removes its temporary folder then.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())


def attach() -> None:
    """Have this process tell the prediction that it belongs to what it does on the card. Called by `sitecustomize`.

    Raises:
        Exception: it cannot, for whatever reason.
    """
    if importlib.util.find_spec("torch") is None:
        return
    from ullage.predicting.prediction.child.attached import attach as begin

    begin()


def record() -> None:
    """Record this process as part of its run. Called by `sitecustomize` when torch is about to be imported.

    Raises:
        Exception: nothing of it can be recorded, for whatever reason.
    """
    from ullage.gpu.tracing.torch_import import ImportWatch
    from ullage.running.recording.plan import RecordingPlan, report_trouble

    plan = RecordingPlan.of()
    if plan is None:
        return

    def install(torch: ModuleType) -> None:
        try:
            if getattr(getattr(torch, "version", None), "cuda", None) is not None:  # another module may have the name
                from ullage.running.recording.recorder import Recorder

                Recorder(plan).install()
        except Exception as error:
            report_trouble("nothing is recorded", error)

    ImportWatch("torch", before=lambda: None, after=install).install()
