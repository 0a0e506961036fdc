"""Loaded by Python at the start of every child process of one that emulates a card, or of a run that is recorded.

It has the same card emulated, and recording begun, there; then it makes way for the `sitecustomize` that the
environment has of its own, if any. A process that cannot emulate ends here: it would go on with a real card, or with
none. One that cannot record goes on without. One without torch, such as a tool with a Python of its own, needs neither.

Pythons of any version read this file, even 2.7: so it has no annotations and only what all of them know.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable  # noqa: F401

_here = os.path.dirname(os.path.abspath(__file__))


def _has_torch():
    # type: () -> bool
    """Tell whether the interpreter has a torch, without importing it."""
    try:
        import importlib.util

        return importlib.util.find_spec("torch") is not None
    except (ImportError, AttributeError, ValueError):
        return False


def _can_load_package():
    # type: () -> bool
    """Tell whether the compiled parts of our package, which is beside this file, are made for this interpreter."""
    try:
        from importlib.machinery import EXTENSION_SUFFIXES
    except ImportError:
        return False
    part = os.path.join(os.path.dirname(_here), "snapshot", "_pickle")
    return any(os.path.exists(part + suffix) for suffix in EXTENSION_SUFFIXES)


def _end(why):
    # type: (str) -> None
    sys.stderr.write(
        "ullage: this process cannot emulate the card of the process that started it (" + why + "); it ends here, "
        "because it would find another card or none. Unset ULLAGE_EMULATED_CARD to run without.\n"
    )
    sys.stderr.flush()
    os._exit(4)


def _go_on(why):
    # type: (str) -> None
    sys.stderr.write("ullage: nothing is recorded of this process (" + why + ")\n")


def _begin(variable, what, give_up):
    # type: (str, str, Callable[[str], None]) -> None
    """Do what a variable of the environment asks for, where it is set: `emulate` or `record` of `begin.py`."""
    if not os.environ.get(variable):
        return
    if not _can_load_package():
        if _has_torch():
            give_up("ullage is not installed for its Python, " + ".".join(map(str, sys.version_info[:2])))
        return
    root = os.path.dirname(os.path.dirname(_here))  # the interpreter may not have it
    added = root not in sys.path
    if added:
        sys.path.append(root)
    try:
        import importlib

        getattr(importlib.import_module("ullage._child.begin"), what)()
    except Exception as error:
        give_up(type(error).__name__ + ": " + str(error))
    finally:
        if added:
            sys.path.remove(root)


def _run_next():
    # type: () -> None
    """Import the `sitecustomize` that Python would have found without this one."""
    path = list(sys.path)
    sys.path[:] = [folder for folder in path if os.path.abspath(folder or os.curdir) != _here]
    found_here = [folder for folder in path if folder not in sys.path]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this
    finally:
        sys.path[:0] = found_here


_begin("ULLAGE_EMULATED_CARD", "emulate", _end)
_begin("ULLAGE_RECORDING", "record", _go_on)
_run_next()
