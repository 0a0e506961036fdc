"""Workspaces where cuDNN cannot be asked: what its plans were for problems like it, measured once.

`tables/VERSION.csv` is written by `benchmarks/cudnn/measure.py`. A row is a class of problems; its figures are shares of
the bytes of input, weights and output. Nothing here is exact: an expected value, and the range of what was measured.
"""

from dataclasses import dataclass

from ullage.emulator.cudnn.tree import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The workspace that a problem may have, in bytes."""

    expected_bytes: int
    low_bytes: int
    high_bytes: int


def estimate(nodes: tuple[Node, ...], *, version: int, capability: int) -> Estimate | None:
    """Estimate the workspace of a graph; None where nothing like it was measured.

    Args:
        nodes: the graph, as in `tree`.
        version: of the cuDNN that torch would load, 91900 for 9.19.0; the nearest that was measured counts.
        capability: 86 for compute capability 8.6; of those measured, the highest that is not above it.
    """
    return None
