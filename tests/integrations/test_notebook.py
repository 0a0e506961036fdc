"""The notebook's magics, in IPython's own shell, where a card is emulated."""

import contextlib
import io
import re

import pytest

from tests.guard.inside import inside

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
    assert "used no GPU" in cell("%%memory\n1 + 1")
    assert "Nothing is held" in cell("%memory")
    assert "Nothing is held" in cell("%free")
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
    assert re.search(r"20.0 MiB are held:\n +16.0 MiB +global.* 'y'.*\n +4.0 MiB +global.* 'x'", cell("%memory"))

    cell("def go(n):\n    a = torch.zeros(1 << 30, device='cuda')\n    return torch.zeros(n, device='cuda')")
    failed = cell("%%memory\ngo(1 << 34)")
    assert re.search(r"left by the cell:\n +4.00 GiB +traceback.*go\(\) local 'a'", failed)
    assert torch.cuda.memory_allocated() == (4 << 30) + (20 << 20)
    freed = cell("%free")
    assert "4.00 GiB freed: 4.02 GiB were allocated, 20.0 MiB are, and 20.0 MiB are reserved." in freed
    assert torch.cuda.memory_allocated() == 20 << 20

    cell("del x, y")
    assert "notebook" in cell("%memory")
    cell("%free --out")
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
    assert "'3x' is not a size" in cell("%memory 3x")
    assert "takes no options" in cell("%%memory 3x\n1")
    assert "takes --out" in cell("%free all")
    cell("%unload_ext ullage")
    assert "memory" not in shell.magics_manager.magics["cell"]
