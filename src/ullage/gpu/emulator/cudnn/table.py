"""Estimate cuDNN workspace sizes from measurements of similar graphs, if cuDNN cannot be used.

`benchmarks/cudnn/measure.py` writes the measurements to `tables/VERSION.csv`. Each row is a class of convolutions, with
workspace sizes as fractions of the bytes of input, weights and output: the median, and a range without the top 2.5 %. A
few engines need a hundred times the size of their tensors. Attention has one class for the forward pass and one for the
backward pass, relative to the bytes of all its tensors. Other graphs were not measured.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, prod
from pathlib import Path
from typing import Final, TypeAlias

from ullage.gpu.emulator.cudnn.tree import (
    TENSOR,
    TENSOR_IS_VIRTUAL,
    TENSOR_SIZE,
    TENSOR_TYPE,
    Convolution,
    Node,
    convolution_of,
)

FOLDER: Final = Path(__file__).parent / "tables"
COLUMNS: Final = (
    "capability",
    "direction",
    "dimensions",
    "groups",
    "type",
    "layout",
    "kernel",
    "places",
    "stride",
    "expected",
    "low",
    "high",
    "problems",
)
ANY: Final = "any"
OPERATIONS: Final = {
    "convolution": "forward",
    "convolution, gradient of weights": "weights",
    "convolution, gradient of input": "input",
}
ALL_ENGINES: Final = " of all engines"
_ATTENTION: Final = {2: "attention", 5: "attention backward"}  # by number of matrix products
_WHOLE_ATTENTION: Final = {41: "attention", 43: "attention backward"}
_MATMUL: Final = 19
_BYTES: Final = {0: 4, 1: 8, 2: 2, 4: 4, 9: 2}  # cudnnDataType_t
_FIGURE_COLUMNS: Final = 4  # the number of columns with figures, at the end of a row
_FEW_PLACES: Final = 256
# Any graph may need this much, for example for indices.
_FLAT_BYTES: Final = 64 << 10
_FLOAT_ERROR_BYTES: Final = 1e-9  # rounding error of floating-point calculations, in bytes

Key: TypeAlias = tuple[str, ...]


class TableError(ValueError):
    """A table of cuDNN workspace measurements is damaged or missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated workspace size of a cuDNN graph in bytes."""

    expected_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The measured workspace sizes of one class of cuDNN graphs, divided by the total bytes of a graph's tensors."""

    expected: float
    low: float
    high: float


def estimate(
    nodes: tuple[Node, ...], *, version: int, capability: int, of_all_engines: bool = False
) -> Estimate | None:
    """Estimate the workspace size of a cuDNN graph. Return None if no similar graph was measured.

    Args:
        nodes: the graph, as `tree` describes it.
        version: the cuDNN version that torch would load, 91900 for 9.19.0. The nearest measured version is used.
        capability: 86 for compute capability 8.6. If it was not measured for a class, the next lower one is used.
        of_all_engines: return the range of all engines that PyTorch may choose, not only of the engine that cuDNN ranks
            first.

    Raises:
        TableError: the table of this installation is damaged or missing.
    """
    first = _find(nodes, version, capability, of_all_engines=False)
    if first is None or not of_all_engines:
        return first
    every = _find(nodes, version, capability, of_all_engines=True) or first
    return Estimate(
        expected_bytes=first.expected_bytes,
        low_bytes=min(first.low_bytes, every.low_bytes),
        high_bytes=max(first.high_bytes, every.high_bytes),
    )


def _find(nodes: tuple[Node, ...], version: int, capability: int, *, of_all_engines: bool) -> Estimate | None:
    convolution = convolution_of(nodes)
    tensor_bytes = attention_bytes(nodes) if convolution is None else convolution.tensor_bytes
    for path in _nearest_first(version):
        table = _load(path)
        measured = sorted({int(key[0]) for key in table}, reverse=True)
        for card in [one for one in measured if one <= capability] or measured[-1:]:
            classes = attention_classes_of(nodes, capability=card)
            if convolution is not None:
                classes = classes_of(convolution, capability=card, of_all_engines=of_all_engines)
            if found := next((table[key] for key in classes if key in table), None):
                return _scale(found, tensor_bytes)
    return None


def classes_of(convolution: Convolution, *, capability: int, of_all_engines: bool = False) -> Iterator[Key]:
    """Yield the table rows that a convolution belongs to, the most specific one first.

    Each further row ignores one more property: the stride, then the number of output positions, then the kernel size,
    then type and layout. Direction, number of dimensions and kind of groups always count. Rare combinations are not in
    the table.

    The number of output positions matters. If it is odd, such as 7 x 7, more engines copy their tensors. If it is
    small, the gradient of the weights is summed in more parts.

    With `of_all_engines`, only the less specific rows exist, because fewer graphs were measured.
    """
    heights = convolution.x[2:], convolution.w[2:]
    over_time = len(heights[0]) <= 1 or (len(heights[0]) == 2 and heights[0][0] == heights[1][0] == 1 < heights[0][1])
    wide = (
        str(capability),
        OPERATIONS[convolution.operation] + (ALL_ENGINES if of_all_engines else ""),
        "1" if over_time else str(len(heights[0])),
        "none" if convolution.groups == 1 else "depthwise" if convolution.w[1] == 1 else "grouped",
    )
    kind = (
        "half" if convolution.type in ("fp16", "bf16") else convolution.type,
        "last" if convolution.is_channels_last else "first",
    )
    kernel = max(convolution.w[2:], default=1)
    window = "1" if kernel == 1 else "3" if kernel <= 3 else "5"
    if not of_all_engines:
        count = prod(convolution.y[2:])
        places = "odd" if count % 2 else "few" if count <= _FEW_PLACES else "many"
        yield (*wide, *kind, window, places, "1" if max(convolution.strides, default=1) == 1 else "2")
        yield (*wide, *kind, window, places, ANY)
    yield (*wide, *kind, window, ANY, ANY)
    yield (*wide, *kind, ANY, ANY, ANY)
    yield (*wide, ANY, ANY, ANY, ANY, ANY)


def attention_classes_of(nodes: tuple[Node, ...], *, capability: int) -> Iterator[Key]:
    """Yield the key of the measured workspace sizes for attention, if the cuDNN graph computes attention."""
    # Without a mask, PyTorch uses cuDNN's single attention operation for each pass. Otherwise an attention graph has
    # two matrix products in the forward pass and five in the backward pass.
    whole = next((_WHOLE_ATTENTION[node.kind] for node in nodes if node.kind in _WHOLE_ATTENTION), None)
    if direction := whole or _ATTENTION.get(sum(node.kind == _MATMUL for node in nodes)):
        yield (str(capability), direction, *([ANY] * (len(COLUMNS) - _FIGURE_COLUMNS - 2)))


def attention_bytes(nodes: tuple[Node, ...]) -> int:
    """Return the total bytes of the tensors that an attention graph stores in memory."""
    return sum(
        _BYTES.get((node.values(TENSOR_TYPE) or (-1,))[0], 1) * prod(node.values(TENSOR_SIZE))
        for node in nodes
        if node.kind == TENSOR and not any(node.values(TENSOR_IS_VIRTUAL))
    )


def _scale(share: Share, tensor_bytes: int) -> Estimate:
    low, high = (
        floor(share.low * tensor_bytes + _FLOAT_ERROR_BYTES),
        ceil(share.high * tensor_bytes - _FLOAT_ERROR_BYTES),
    )
    low, high = max(0, low - _FLAT_BYTES), high + _FLAT_BYTES
    return Estimate(
        expected_bytes=min(max(round(share.expected * tensor_bytes), low), high), low_bytes=low, high_bytes=high
    )


def _nearest_first(version: int) -> list[Path]:
    found = {}
    for path in FOLDER.glob("*.csv"):
        major, _, minor = path.stem.partition(".")
        if major.isdigit() and minor.isdigit():
            found[int(major) * 100 + int(minor)] = path
    if not found:
        raise TableError(f"{FOLDER} contains no table; expected files such as 9.19.csv: install ullage again")
    return [found[one] for one in sorted(found, key=lambda one: (abs(one - version // 100), -one))]


@cache
def _load(path: Path) -> dict[Key, Share]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} cannot be read ({error}); install ullage again") from None
    if not lines or tuple(lines[0]) != COLUMNS or len(lines) == 1:
        raise TableError(f"{path} does not begin with the columns of a table, or has no rows; install ullage again")
    return dict(_row(path, number, line) for number, line in enumerate(lines[1:], 2))


def _row(path: Path, number: int, line: list[str]) -> tuple[Key, Share]:
    try:
        expected, low, high, problems = map(float, line[-_FIGURE_COLUMNS:])
        good = len(line) == len(COLUMNS) and line[0].isdigit() and 0 <= low <= expected <= high < 1e6 and problems >= 1
    except ValueError:
        good = False
    if not good:
        raise TableError(
            f"line {number} of {path} is not a row of a table: {','.join(line)[:80]!r}; install ullage again"
        )
    return tuple(line[:-_FIGURE_COLUMNS]), Share(expected=expected, low=low, high=high)
