"""Searches in names of frames: each name is searched once, in time linear in its length.

C++ names can be very long, because compilers write all template arguments into them. A small snapshot can have a long
name in thousands of frames, because a pickle contains each text once.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_MOST_KEPT: Final = 1 << 14
_NODE: Final = re.compile(r"(?<!\w)(\w*?)(Backward(?:All)?\d*+)(?=<|::apply\b)")
_APPLIED: Final = re.compile(r">::apply\b")
_FORWARD: Final = re.compile(r"\bat::_ops::(\w+?)::(?:call|redispatch)\b")


@lru_cache(maxsize=_MOST_KEPT)
def is_in(search: "Callable[[str], re.Match[str] | None]", name: str) -> bool:
    """Return whether a search, such as `pattern.search`, finds something in a name."""
    return search(name) is not None


@lru_cache(maxsize=_MOST_KEPT)
def node_in(name: str) -> "re.Match[str] | None":
    """Return the match of a node whose `apply` the frame runs: the name of the operation, and the rest of the node's
    name.

    Args:
        name: the name of a C++ frame. For "torch::autograd::generated::AddmmBackward0::apply(...)", the groups are
            "Addmm" and "Backward0". The names are those of torch 2.1 to 2.15.
    """
    if "Backward" not in name or "::apply" not in name:
        return None
    template_ends = max((found.start() for found in _APPLIED.finditer(name)), default=-1)
    nodes = _NODE.finditer(name)
    return next((node for node in nodes if name[node.end()] == ":" or node.end() < template_ends), None)


@lru_cache(maxsize=_MOST_KEPT)
def operation_in(name: str) -> str:
    """Return the operation that a C++ frame calls, such as "addmm" for "at::_ops::addmm::call"; empty for others."""
    found = _FORWARD.search(name)
    return found[1] if found is not None else ""
