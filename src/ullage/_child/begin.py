"""Prepare a child process: emulate a GPU, report memory to `ullage predict`, or record memory for `ullage run`."""

import importlib.util
import signal
import sys
from pathlib import PurePath
from types import ModuleType
from typing import Final

_COMPILE_WORKER: Final = ("_inductor", "compile_worker", "__main__.py")
"""The end of the file path of torch.compile's worker script. torch.compile starts this script as a separate process."""


def emulate() -> None:
    """Emulate the parent process's GPU in this process.

    `sitecustomize` calls this function before the code of the process runs.

    Raises:
        Exception: the GPU cannot be emulated, for any reason.
    """
    if importlib.util.find_spec("torch") is None:
        return  # an interpreter without torch does not use a GPU
    from ullage.base.errors import TorchMissingError
    from ullage.gpu.emulator.emulate import inherit

    try:  # noqa: SIM105
        inherit()
    except TorchMissingError:
        pass  # a torch without CUDA does not use a GPU
    if PurePath(*sys.orig_argv[1:2]).parts[-len(_COMPILE_WORKER) :] == _COMPILE_WORKER:
        # The worker gets SIGTERM when the process that it compiles for ends (`tracing.compiled`). It then removes its
        # temporary
        # folder.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())


def attach() -> None:
    """Make this process report its GPU memory to the prediction (`ullage predict`) that started it.

    `sitecustomize` calls this function.

    Raises:
        Exception: the process cannot report, for any reason.
    """
    if importlib.util.find_spec("torch") is None:
        return
    from ullage.predicting.prediction.child.attached import attach as begin

    begin()


def record() -> None:
    """Record the GPU memory of this process for the `ullage run` command that started it.

    `sitecustomize` calls this function right before torch is imported.

    Raises:
        Exception: recording cannot start, for any reason.
    """
    from ullage.gpu.tracing.torch_import import ImportWatch
    from ullage.running.recording.plan import RecordingPlan, report_trouble

    plan = RecordingPlan.of()
    if plan is None:
        return

    def install(torch: ModuleType) -> None:
        try:
            if getattr(getattr(torch, "version", None), "cuda", None) is not None:  # another module may be called torch
                from ullage.running.recording.recorder import Recorder

                Recorder(plan).install()
        except Exception as error:
            report_trouble("this process is not recorded", error)

    ImportWatch("torch", before=lambda: None, after=install).install()
