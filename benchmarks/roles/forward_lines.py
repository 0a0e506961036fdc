"""Run a workload on an emulated card with PyTorch's anomaly mode, which knows the forward line of each backward node.

`python forward_lines.py NAME FOLDER` writes NAME.pickle, a snapshot with C++ frames, and NAME.json: for each node that
ran, how many allocations there were before it, and the script's line that made it (null for a parameter's own node).
"""

import json
import sys
from pathlib import Path
from typing import Any

from ullage.gpu.emulator import emulate

CARD = "A100 80GB"


def main(name: str, folder: Path) -> None:
    emulate(CARD, values="off")  # whose kernels would stand among the C++ frames
    import torch

    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    rows: list[tuple[int, str | None]] = []
    torch.cuda.memory._record_memory_history(stacks="all", max_entries=1_000_000)
    torch.autograd.set_detect_anomaly(mode=True, check_nan=False)
    import torch.autograd.graph as graph

    original = graph._engine_run_backward

    def allocations() -> int:
        return int(torch._C._cuda_memoryStats(0)["allocation"]["all"]["allocated"])

    def watched(roots: Any, *arguments: Any, **keywords: Any) -> Any:
        pending = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
        seen, handles = set(), []
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            line = line_of(node.metadata.get("traceback_"))
            handles.append(node.register_prehook(lambda grads, line=line: rows.append((allocations(), line))))
            pending += [following for following, _ in node.next_functions if following is not None]
        try:
            return original(roots, *arguments, **keywords)
        finally:
            rows.append((allocations(), "(end)"))
            for handle in handles:
                handle.remove()

    for owner in (graph, torch.autograd):
        owner._engine_run_backward = watched
    import workloads

    workloads.WORKLOADS[name]()
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    (folder / f"{name}.json").write_text(json.dumps(rows))


def line_of(stack: list[str] | None) -> str | None:
    """The innermost line of the script's in a stack as anomaly mode keeps it."""
    for text in reversed(stack or ()):
        place = text.strip().split("\n", 1)[0]
        if "workloads.py" in place:
            return place.split("line ", 1)[1].split(",", 1)[0]
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
