"""The process that runs every construct three times, and says what came of it: `python -m tests.gpu.values.process`."""

import gc
import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
from contextlib import suppress
from typing import Any

import ullage

ullage.emulate("A100", values="off")

from ullage.gpu.tracing.journal import Journal  # noqa: E402

journal = Journal()
journal.open()

import torch  # noqa: E402

from tests.gpu.values import constructs  # noqa: E402, F401
from tests.gpu.values.run import CONSTRUCTS, Construct, Run, plain  # noqa: E402
from ullage.gpu.emulator import library  # noqa: E402
from ullage.gpu.values.choice import ValuesChoice  # noqa: E402
from ullage.gpu.values.start import Values  # noqa: E402


def run_once(function: Construct, run: Run, *, with_result: bool = True) -> dict[str, Any]:
    """Run a construct with an empty cache; its events, and its result."""
    torch.manual_seed(0)
    gc.collect()
    torch.cuda.empty_cache()
    before = journal.length()
    kept = torch.cuda.memory_allocated()
    try:
        result = function(run)
    except Exception:
        return {"error": traceback.format_exc()}
    entries = journal.entries()[before:]
    events = entries[["address", "size", "kind", "allocated", "reserved"]]
    answer: dict[str, Any] = {
        "events": len(events),
        "digest": hashlib.sha256(events.tobytes()).hexdigest(),
        "sizes": [
            int(size) * (1 if kind == 1 else -1) for size, kind in zip(events["size"], events["kind"], strict=True)
        ],
        "kept": kept,
    }
    if with_result:
        answer["result"] = plain(result)
    return answer


def main() -> None:
    """Write a line of JSON for each construct: those that are named, or all."""
    chosen = {name: CONSTRUCTS[name] for name in sys.argv[1:] or CONSTRUCTS}
    if importlib.util.find_spec("torchvision") is None:
        chosen = {name: each for name, each in chosen.items() if not name.endswith("nms")}
    found: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    torch.ones(1, device="cuda").sum().item()
    for imported_by_one in ("torch._dynamo", "torchvision"):
        with suppress(ImportError):
            importlib.import_module(imported_by_one)
    gc.collect()
    gc.freeze()  # collections look at what the constructs made, not at all of torch
    for name, function in chosen.items():
        found[name]["host"] = run_once(function, Run("cpu", library.answer))
        constant = Run("cuda", library.answer, is_constant=True)
        run_once(function, constant, with_result=False)  # what libraries allocate once
        found[name]["constant"] = run_once(function, constant, with_result=False)
    values = Values(ValuesChoice(), library)
    values.start()
    for name, function in chosen.items():
        values.reads.counts.clear()
        found[name]["card"] = run_once(function, Run("cuda", library.answer))
        found[name]["reads"] = [
            [str(read.line), read.kind, read.operation, read.certainty.name, count]
            for read, count in values.reads.counts.items()
        ]
    gc.collect()
    for name in found:
        print(json.dumps([name, found[name]]))
    contents = values.contents
    contents.get((0, 0))  # takes in what was freed
    print(
        [(a, c.bytes, c.dtype, c.call, c.certainty) for a, c in contents._contents.items()],
        torch.cuda.memory_allocated(),
        file=sys.stderr,
    )
    last = {
        "failures": values.evaluation.failures,
        "kept_bytes": values.evaluation.kept_bytes,
        "contents": len(contents),
    }
    print(json.dumps(["", last]))


if __name__ == "__main__":
    main()
