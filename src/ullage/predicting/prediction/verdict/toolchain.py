"""What a script misses that Triton compiles while it runs: a C compiler, or Python's headers.

Triton builds C code on the machine that launches its kernels, on an emulated card as beside a real one. What else may
go wrong with a build is not known here.
"""

import sysconfig
from pathlib import Path
from typing import Final

_WHY: Final = (
    "Triton, which torch.compile uses, builds C code when a script runs, beside a real card as well, and this machine "
    "has"
)
_INSTEAD: Final = "or set TORCHDYNAMO_DISABLE=1 to have the script run without torch.compile"


def missing_tool(error: str) -> str | None:
    """Say what is missing, and what to do, where the text of a script's error means that; else None."""
    if "Failed to find C compiler" in error:
        return f"{_WHY} no C compiler; install gcc, or name a compiler in CC, {_INSTEAD}"
    if "CalledProcessError" in error and "triton" in error:
        headers = Path(sysconfig.get_path("include")) / "Python.h"
        if not headers.exists():
            return f"{_WHY} no headers of its Python ({headers}); install them (Debian: python3-dev), {_INSTEAD}"
    return None
