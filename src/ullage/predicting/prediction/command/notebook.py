"""Run the code cells of a Jupyter notebook in order, as a script."""

import ast
import builtins
import importlib.util
import inspect
import json
import linecache
import re
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.base.foreign_files import read_regular

_MOST_BYTES: Final = 1 << 30
_INSTALLING: Final = re.compile(
    r"^([ \t]*)[!%]{1,2}(?:sudo |python\d? -m |uv )*(?:pip|pip3|conda|mamba|apt|apt-get)\b.*$", re.MULTILINE
)


def run_notebook(file: Path, module: ModuleType) -> None:
    """Run the code cells of a notebook in order in a module's namespace.

    If IPython is installed, it translates magics (%...) and shell lines (!...). Lines that install packages are
    skipped, because a prediction must not change the caller's environment.
    """
    shell = _shell(module)
    for number, source in enumerate(cells_of(file), 1):
        name = f"{file}[cell {number}]"
        text = shell.transform_cell(source) if shell is not None else source
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        _execute(code, vars(module))


def cells_of(file: Path) -> list[str]:
    """Return the sources of a notebook's code cells (nbformat 4).

    Raises:
        UsageError: the file is not a notebook, its language is not Python, or it needs IPython, which is not installed.
    """
    try:
        notebook = json.loads(read_regular(file, most_bytes=_MOST_BYTES))
        cells = notebook["cells"]
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not a notebook of format version 4: {error}; save it again with Jupyter") from None
    if language != "python":
        raise UsageError(f"the language of the notebook {file} is {language}; expected python")
    kept = [_INSTALLING.sub(r"\1pass", source) for source in sources if source.strip()]
    for number, source in enumerate(kept, 1):
        magic = next((line for line in source.splitlines() if line.lstrip().startswith(("%", "!"))), None)
        if magic is not None and importlib.util.find_spec("IPython") is None:
            raise UsageError(
                f"cell {number} of {file} has {magic!r}, which needs IPython to run, and IPython is not installed: pip "
                "install ipython"
            )
    return kept


def _shell(module: ModuleType) -> Any:
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        return None
    shell = InteractiveShell.instance(user_module=module, user_ns=vars(module))
    vars(module).setdefault("get_ipython", shell.get_ipython)
    builtins.get_ipython = shell.get_ipython  # type: ignore[attr-defined]  # as a kernel has it for imported modules
    return shell


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    result = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        import asyncio

        asyncio.run(result)
    sys.stdout.flush()
