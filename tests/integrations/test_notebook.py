"""The notebook's magics, in IPython's own shell, where a card is emulated."""

import contextlib
import io
import re
import warnings
from typing import Any

import pytest

from tests.shared.inside import inside

pytest.importorskip("IPython")


@inside
def test_cells_what_they_leave_and_what_a_failed_one_holds() -> None:
    """`%%memory` tells of a cell, `%memory` of all cells, and `%free` gives back what a failed cell holds."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")

    def cell(text: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            shell.run_cell(text, store_history=True)
        return out.getvalue()

    cell("%load_ext ullage")
    assert "did not use a GPU" in cell("%%memory\n1 + 1")
    assert "No device memory is allocated" in cell("%memory")
    assert "No GPU memory is held" in cell("%free")
    assert not torch.cuda.is_initialized()
    first = cell("%%memory\nimport torch\nx = torch.zeros(1 << 20, device='cuda')")
    assert "memory: 0 B before, 4.0 MiB after (4.0 MiB more), 4.0 MiB at the cell's peak" in first

    torch.cuda.memory.empty_cache()
    cell("z = torch.zeros(1 << 24, device='cuda'); del z")  # a higher peak than the next cell's
    second = cell("%%memory\ny = torch.zeros(1 << 22, device='cuda')\nz = y + 1\ndel z\ny")
    assert "memory: 4.0 MiB before, 20.0 MiB after (16.0 MiB more), 36.0 MiB at the cell's peak" in second
    assert torch.cuda.max_memory_allocated() == 68 << 20, "the user's highest mark stays"
    assert not torch._C._cuda_isHistoryEnabled()
    assert re.search(r"16.0 MiB +activations and others +In\[\d+\]:2", second)
    assert re.search(r"left by the cell:\n +16.0 MiB +global +\S+ global 'y'\n$", second)
    assert re.search(r"20.0 MiB are allocated:\n +16.0 MiB +global.* 'y'.*\n +4.0 MiB +global.* 'x'", cell("%memory"))

    cell("def go(n):\n    a = torch.zeros(1 << 30, device='cuda')\n    return torch.zeros(n, device='cuda')")
    failed = cell("%%memory\ngo(1 << 34)")
    assert re.search(r"left by the cell:\n +4.00 GiB +traceback.*go\(\) local 'a'", failed)
    assert torch.cuda.memory_allocated() == (4 << 30) + (20 << 20)
    freed = cell("%free")
    assert "4.00 GiB freed: 4.02 GiB were allocated before, 20.0 MiB are now; 20.0 MiB are reserved." in freed
    assert torch.cuda.memory_allocated() == 20 << 20

    cell("del x, y")
    assert "notebook" in cell("%memory")
    cell("%free --out")
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
    cell("%unload_ext ullage")
    assert "memory" not in shell.magics_manager.magics["cell"]


_FAILING = {
    "error": "def go():\n    1 / 0\ngo()",
    "chained error": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "syntax": "1 +",
    "indentation": "  if 1:\n1",
    "syntax of another file": "compile('1 +', 'other.py', 'exec')",
    "group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "interruption": "raise KeyboardInterrupt",
    "exit": "raise SystemExit(3)",
    "another magic": "%%no_such_magic\n1",
    "wrong call of a magic": "%%memory 3x\n1",
}


@inside
def test_a_failed_cell_is_one() -> None:
    """An error below `%%memory` is shown once, as without, and IPython is told: the cells after it are not run."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")

    def failed(text: str) -> tuple[Any, str]:
        out = io.StringIO()
        quiet = warnings.catch_warnings(action="ignore", category=UserWarning)  # how to leave, after SystemExit
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), quiet:
            result = shell.run_cell(text, store_history=True)
        return result, re.sub(r"(ipython-input-)\d+-\w+", r"\1N", out.getvalue())

    failed("%load_ext ullage")
    for in_use in (False, True):
        if in_use:
            failed("import torch; torch.zeros(1, device='cuda')")
        for name, code in _FAILING.items():
            without, shown = failed(code)
            within, around = failed(f"%%memory\n{code}")
            assert without.success is within.success is False, name
            errors = [one.error_before_exec or one.error_in_exec for one in (without, within)]
            assert type(errors[0]) is type(errors[1]), name
            assert around.startswith(shown), f"{name}:\n{around}\nis not\n{shown}"
            assert "memory: " in around[len(shown) :], name
            assert "Error" not in around[len(shown) :], f"{name} is shown twice:\n{around}"
            assert failed(code)[1] == shown, f"{name}: what comes after is shown as ever"
            assert failed("2 + 2")[0].success, name


@inside
def test_an_error_that_a_cell_catches_from_within_another_hides_none() -> None:
    """Whoever calls the magic and handles its error sees the next error all the same."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")
    shell.run_cell("%load_ext ullage")
    code = "try:\n    get_ipython().run_cell_magic('memory', '', '1/0')\nexcept ZeroDivisionError:\n    [][0]"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = shell.run_cell(code)
    assert isinstance(result.error_in_exec, IndexError)
    assert "list index out of range" in out.getvalue()


@inside
def test_a_magic_that_is_called_wrongly_has_failed() -> None:
    """Options that there are not end in a sentence and no traceback, and the cell counts as failed."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")
    shell.run_cell("%load_ext ullage")
    refused = {"%memory 3x": "'3x' is not a size", "%%memory 3x\n1": "takes no options", "%free all": "takes --out"}
    for code, sentence in refused.items():
        with contextlib.redirect_stderr(io.StringIO()) as err:
            result = shell.run_cell(code)
        assert not result.success
        assert sentence in err.getvalue()
        assert "Traceback" not in err.getvalue()
