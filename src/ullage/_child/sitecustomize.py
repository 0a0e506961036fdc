"""Loaded by Python at the start of every child process of one that emulates a card, or of a run that is recorded.

It has the same card emulated, and recording begun, there; then it makes way for the `sitecustomize` that the
environment has of its own, if any. A process that cannot emulate ends here: it would go on with a real card, or with
none. One that cannot record goes on without.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_here = os.path.dirname(os.path.abspath(__file__))


@contextmanager
def _package() -> Iterator[None]:
    """Have `import ullage` find the package that this file is part of, also where the interpreter does not know it."""
    root = os.path.dirname(os.path.dirname(_here))
    added = root not in sys.path
    if added:
        sys.path.append(root)
    try:
        yield
    finally:
        if added:
            sys.path.remove(root)


def _emulate() -> None:
    if importlib.util.find_spec("torch") is None:
        return  # an interpreter without torch needs no card
    try:
        from ullage._errors import TorchMissingError
        from ullage.emulator.emulate import inherit

        try:  # noqa: SIM105
            inherit()
        except TorchMissingError:
            pass  # a build without CUDA uses no card
    except Exception as error:
        sys.stderr.write(
            "ullage: this process cannot emulate the card of the process that started it "
            f"({type(error).__name__}: {error}); it ends here, because it would find another card or none. "
            "Unset ULLAGE_EMULATED_CARD to run without.\n"
        )
        sys.stderr.flush()
        os._exit(4)


def _record() -> None:
    try:
        from ullage.recording.start import start

        start()
    except Exception as error:
        sys.stderr.write(f"ullage: nothing is recorded of this process ({type(error).__name__}: {error})\n")


def _run_next() -> None:
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with _package():
    if os.environ.get("ULLAGE_EMULATED_CARD"):
        _emulate()
    if os.environ.get("ULLAGE_RECORDING"):
        _record()
_run_next()
