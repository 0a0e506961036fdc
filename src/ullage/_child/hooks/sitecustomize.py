"""Python loads this file at the start of every child process of an emulated process or of a recorded run.

In a child of an emulated process, this file emulates the same GPU at once, or when torch is imported if the interpreter
does not find torch at its start. In a recorded run, it starts to record when torch is imported, and loads none of
ullage's modules before. Then it imports the environment's own `sitecustomize`, if there is one.

`handover.c` runs this file too, as a module with another name, if the options of the interpreter exclude it.

A process that cannot emulate the GPU ends here, because it would continue with a real GPU or without a GPU. A process
that cannot be recorded continues without a recording. A process without torch, such as a tool with its own Python, is
neither emulated nor recorded.

Interpreters of any version read this file, even Python 2.7. So it has no annotations and uses only old syntax. It is
alone in its folder, because Python can import every file in that folder.
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
    """Return whether torch is installed for this interpreter. torch is not imported."""
    try:
        import importlib.util

        return importlib.util.find_spec("torch") is not None
    except (ImportError, AttributeError, ValueError):
        return False


def _can_load_package():
    # type: () -> bool
    """Return whether ullage's compiled extensions, next to this file, were built for this Python interpreter."""
    try:
        from importlib.machinery import EXTENSION_SUFFIXES
    except ImportError:
        return False
    part = os.path.join(_package, "recorded", "snapshot", "_pickle")
    return any(os.path.exists(part + suffix) for suffix in EXTENSION_SUFFIXES)


def _end(why):
    # type: (str) -> None
    sys.stderr.write(
        "ullage: this process cannot emulate the GPU of its parent process (" + why + "); it ends here, "
        "because it would use another GPU or none. Set ULLAGE_EMULATED_CARD to an empty value to run it without the "
        "emulated GPU.\n"
    )
    sys.stderr.flush()
    os._exit(4)


def _go_on(why):
    # type: (str) -> None
    try:  # noqa: SIM105  # Python 2 knows no `suppress`
        sys.stderr.write("ullage: this process is not recorded (" + why + ")\n")
    except (OSError, ValueError, AttributeError):  # standard error is full, closed or missing
        pass


def _begin(what, give_up):
    # type: (str, Callable[[str], None]) -> None
    """Call a function of `ullage._child.begin` by its name, if this interpreter has torch and ullage."""
    if not _can_load_package():
        if _has_torch():
            give_up("ullage is not installed for this Python, " + ".".join(map(str, sys.version_info[:2])))
        return
    root = os.path.dirname(_package)  # the interpreter may lack ullage
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
    """An import hook that calls a function when the process begins to import torch."""

    def __init__(self, prepare):
        # type: (Callable[[], None]) -> None
        self._prepare = prepare

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        """Remove this import hook and call the function, if the process imports torch."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            import importlib.util
        except ImportError:  # the script has removed the import path of ullage
            return None
        if importlib.util.find_spec(name) is None:
            sys.meta_path.insert(0, self)  # the script may look again, with another `sys.path`
            return None
        self._prepare()
        return importlib.util.find_spec(name)  # from the first finder again, because `sys.meta_path` has changed


def _run_next():
    # type: () -> None
    """Import the `sitecustomize` module that Python would import if this file did not exist.

    Raises:
        ImportError: Python would not have found a `sitecustomize` either. Python handles this error.
    """
    path = list(sys.path)
    sys.path[:] = [folder for folder in path if os.path.normpath(folder) != _here]  # Python has made the paths absolute
    found_here = [folder for folder in path if folder not in sys.path]
    this = sys.modules.pop("sitecustomize", None)  # kept in a variable: Python 2 clears a module without references
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    finally:
        sys.path[:0] = found_here
        del this


def _emulate():
    # type: () -> None
    if os.environ.get("ULLAGE_EMULATED_CARD"):
        _begin("emulate", _end)
    if os.environ.get("ULLAGE_PREDICTION"):
        _begin("attach", _end)


_is_old = not hasattr(sys, "implementation")  # a current torch does not exist for Python 2
# A script may import this file by hand, and PYTHONPATH may contain the folders of two installations of ullage.
_is_first = not hasattr(sys, "_ullage_hooks")
vars(sys)["_ullage_hooks"] = __file__
if _is_first and (os.environ.get("ULLAGE_EMULATED_CARD") or os.environ.get("ULLAGE_PREDICTION")):
    if _has_torch():
        _emulate()
    elif not _is_old:
        sys.meta_path.insert(0, _TorchImport(_emulate))
if _is_first and os.environ.get("ULLAGE_RECORDING") and not _is_old:
    sys.meta_path.insert(0, _TorchImport(lambda: _begin("record", _go_on)))
if __name__ == "sitecustomize":
    _run_next()
