"""Loaded by Python at the start of every child process of one that emulates a card: emulate the same card there.

It then makes way for the `sitecustomize` that the environment has of its own, if any. A process that cannot emulate
ends here: it would go on with a real card, or with none.
"""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _emulate() -> None:
    if importlib.util.find_spec("torch") is None:
        return  # an interpreter without torch needs no card
    # child -> emulator -> ullage -> the folder that holds the package, for an interpreter that does not find it.
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    added = package_root not in sys.path
    if added:
        sys.path.append(package_root)
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
    finally:
        if added:
            sys.path.remove(package_root)


def _run_next() -> None:
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ULLAGE_EMULATED_CARD"):
    _emulate()
_run_next()
