"""Begin in a child process what its parent does: emulate the same card, be measured, or record."""

import importlib.util


def emulate() -> None:
    """Emulate the card of the process that started this one. Called by `sitecustomize`, before the process's own code.

    Raises:
        Exception: it cannot be emulated, for whatever reason.
    """
    if importlib.util.find_spec("torch") is None:
        return  # an interpreter without torch needs no card
    from ullage._errors import TorchMissingError
    from ullage.emulator.emulate import inherit

    try:  # noqa: SIM105
        inherit()
    except TorchMissingError:
        pass  # a build without CUDA uses no card


def attach() -> None:
    """Have this process tell the prediction that it belongs to what it does on the card. Called by `sitecustomize`.

    Raises:
        Exception: it cannot, for whatever reason.
    """
    if importlib.util.find_spec("torch") is None:
        return
    from ullage.prediction.child.attached import attach as begin

    begin()


def record() -> None:
    """Record this process as part of its run. Called by `sitecustomize` when torch is about to be imported.

    Raises:
        Exception: nothing of it can be recorded, for whatever reason.
    """
    from ullage.recording.start import start

    start()
