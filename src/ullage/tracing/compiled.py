"""What torch.compile has made in this process, without loading any of it."""

import sys


def compiled_graphs() -> int:
    """Return the number of graphs that Dynamo made, by its own count (torch._dynamo.utils.counters)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0
