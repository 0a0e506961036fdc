"""Run a script to its end or its out-of-memory error, and write what memory it used.

`run_and_report.py FILE SCRIPT [ARGUMENT ...]`

Any other error ends this process with the script's own traceback, and nothing is written.
"""

import json
import os
import runpy
import sys
from typing import Any

import torch

FITS, DOES_NOT_FIT = "fits", "does not fit"
OUTSIDE = ("out of memory", "ALLOC_FAILED")
"""What errors say when a library or the driver itself, and not PyTorch's allocator, found no memory."""
NO_PLAN = "unable to find an engine"
"""What PyTorch says when it has found memory for none of cuDNN's plans, or when there is no plan at all."""


def _run(script: str) -> dict[str, Any]:
    try:
        runpy.run_path(script, run_name="__main__")
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        return {"outcome": DOES_NOT_FIT, "error": f"torch.OutOfMemoryError: {error}"}
    except RuntimeError as error:
        is_for_memory = any(text in str(error) for text in OUTSIDE)
        if not is_for_memory and not (NO_PLAN in str(error) and torch.cuda.memory_stats()["num_ooms"]):
            raise
        return {"outcome": DOES_NOT_FIT, "error": f"{type(error).__name__}: {error}"}
    return {"outcome": FITS, "error": ""}


def main() -> None:
    """Run, and write the outcome, PyTorch's peaks and what the driver counts."""
    file, script = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    found = _run(script)
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    found |= {f"{name}_bytes": stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")}
    found |= {
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "used_bytes": total - free - stats["reserved_bytes.all.current"] + stats["reserved_bytes.all.peak"],
    }
    with open(file, "w", encoding="utf-8") as answer:
        json.dump(found, answer)
    sys.stdout.flush()
    os._exit(0)  # nothing that a library does at the end takes time, and the driver frees the memory


if __name__ == "__main__":
    main()
