"""The script, run as `python SCRIPT ARGS` would run it."""

import builtins
import io
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from ullage.gpu.tracing.edited_source import EditedSources
from ullage.predicting.prediction.command.notebook import run_notebook
from ullage.predicting.prediction.command.words import NOTEBOOK
from ullage.predicting.prediction.request import ChildRequest


def execute(request: ChildRequest, edited: EditedSources) -> None:
    """Run the script to its end, as the main module of this process."""
    script = request.script
    sys.argv = [request.name, *request.arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(script).resolve().parent))
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", script)
    vars(module).update(__file__=script, __builtins__=builtins, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = module  # for good: pickled classes, spawned processes and exit handlers look there
    if script.endswith(NOTEBOOK):
        run_notebook(Path(script), module)
    else:
        source: str | bytes | None = edited.text_of(script)
        if source is None:
            with io.open_code(script) as stream:
                source = stream.read()
        exec(compile(source, script, "exec", dont_inherit=True), vars(module))
    # A script whose threads train has not ended when its last line has.
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself does next
