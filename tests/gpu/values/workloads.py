"""Trains recorded workloads with values on or off, and writes what the allocator did: `... on|off NAME...`."""

import contextlib
import hashlib
import importlib
import json
import sys

import ullage

ullage.emulate("RTX 4090", values=sys.argv[1])

from ullage.gpu.tracing.journal import Journal  # noqa: E402

journal = Journal()
journal.open()

from tests.truth.runner import in_child, measure  # noqa: E402


def traced(name: str) -> dict[str, object]:
    """Train a workload; how many events there were, and their digest."""
    import torch

    # its copies of weights are freed in the order of addresses on the host, which no two processes share
    torch.set_autocast_cache_enabled(False)
    moments = measure(name)["moments"]
    entries = journal.entries()[["address", "size", "kind", "allocated", "reserved"]]
    return {
        "events": len(entries),
        "digest": hashlib.sha256(entries.tobytes()).hexdigest(),
        "moments": hashlib.sha256(json.dumps(moments, sort_keys=True).encode()).hexdigest(),
    }


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  # what each child would import again

    import tests.truth.workloads  # noqa: F401

    for package in ("torchvision", "transformers"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    for workload in sys.argv[2:]:
        print(json.dumps([workload, in_child(lambda workload=workload: traced(workload))]), flush=True)
