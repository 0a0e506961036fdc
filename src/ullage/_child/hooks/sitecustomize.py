"""Loaded by Python at the start of every child process of one that emulates a card, or of a run that is recorded.

It has the same card emulated there at once, and recording begun when torch is imported: until then no module is loaded
for it. Then it makes way for the `sitecustomize` that the environment has of its own; where there is none, there is
none after this one either. A process that cannot emulate ends here: it would go on with a real card, or with none. One
that cannot record goes on without. One without torch, such as a tool with a Python of its own, needs neither.

Pythons of any version read this file, even 2.7: so it has no annotations and only what all of them know. It is alone
in its folder, because whatever is there is found by every `import`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable  # noqa: F401
    from typing import Any  # noqa: F401

_here = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(os.path.dirname(_here))


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
    """Tell whether the compiled parts of our package, around this file, are made for this interpreter."""
    try:
        from importlib.machinery import EXTENSION_SUFFIXES
    except ImportError:
        return False
    part = os.path.join(_package, "recorded", "snapshot", "_pickle")
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
    try:  # noqa: SIM105  # Python 2 knows no `suppress`
        sys.stderr.write("ullage: nothing is recorded of this process (" + why + ")\n")
    except (OSError, ValueError, AttributeError):  # full, closed, or not there
        pass


def _begin(what, give_up):
    # type: (str, Callable[[str], None]) -> None
    """Call `emulate`, `attach` or `record` of `ullage._child.begin`, where this interpreter can and has need of it."""
    if not _can_load_package():
        if _has_torch():
            give_up("ullage is not installed for its Python, " + ".".join(map(str, sys.version_info[:2])))
        return
    root = os.path.dirname(_package)  # the interpreter may not have it
    added = root not in sys.path
    if added:
        sys.path.append(root)
    try:
        import importlib

        getattr(importlib.import_module("ullage._child.begin"), what)()
    except Exception as error:
        give_up(type(error).__name__ + ": " + str(error))
    finally:
        if added and root in sys.path:
            sys.path.remove(root)


class _TorchImport(object):  # noqa: UP004  # as Python 2 knows it
    """Begins to record when torch is about to be imported."""

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        """Have recording wait for the module, whoever finds it, and leave."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        _begin("record", _go_on)
        try:
            import importlib.util
        except ImportError:  # the script has left no way to it
            return None
        return importlib.util.find_spec(name)  # from the first finder on: those of `sys.meta_path` have changed


def _run_next():
    # type: () -> None
    """Import the `sitecustomize` that Python would have found without this one.

    Raises:
        ImportError: there is none, which Python takes as it would without this one.
    """
    path = list(sys.path)
    sys.path[:] = [folder for folder in path if os.path.normpath(folder) != _here]  # Python has made them absolute
    found_here = [folder for folder in path if folder not in sys.path]
    this = sys.modules.pop("sitecustomize", None)  # with a name: Python 2 empties a module that nobody has
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    finally:
        sys.path[:0] = found_here
        del this


if os.environ.get("ULLAGE_EMULATED_CARD"):
    _begin("emulate", _end)
if os.environ.get("ULLAGE_PREDICTION"):
    _begin("attach", _end)
_is_old = not hasattr(sys, "implementation")  # Python 2 has no torch of today
_is_there = any(type(finder).__name__ == "_TorchImport" for finder in sys.meta_path)  # this file was imported by hand
if os.environ.get("ULLAGE_RECORDING") and not _is_old and not _is_there:
    sys.meta_path.insert(0, _TorchImport())
_run_next()
