"""Loaded by Python at the start of every child process of one that emulates a card: emulate the same card there.

It then makes way for the `sitecustomize` that the environment has of its own, if any.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _emulate() -> None:
    # child -> emulator -> ullage -> the folder that holds the package, for an interpreter that does not find it.
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    sys.path.append(package_root)
    try:
        from ullage._errors import TorchMissingError
        from ullage.emulator.emulate import inherit

        try:
            inherit()
        except TorchMissingError:
            pass  # an interpreter without torch needs no card
    finally:
        sys.path.remove(package_root)


def _run_next() -> None:
    import importlib.machinery
    import importlib.util

    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ULLAGE_EMULATED_CARD"):
    _emulate()
_run_next()
