"""Read queries to cuDNN from text: the descriptors of cuDNN's backend interface with their attributes.

Each line is one descriptor: its kind and its attributes, `name:type:value,value`. Children come before parents, and
parents refer to them by line number. The numbers are those of cudnn_graph.h (cuDNN 9). Handles and addresses are left
out, so that equal queries have equal texts. `client/ask_planner.c` writes this text.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

# cudnnBackendAttributeType_t
TYPE_BOOLEAN: Final = 2
TYPE_INT64: Final = 3
TYPE_DESCRIPTOR: Final = 15

# cudnnBackendDescriptorType_t, and attributes by their descriptor (cudnnBackendAttributeName_t)
CONVOLUTION, TENSOR = 1, 17
CONVOLUTION_DILATIONS, CONVOLUTION_STRIDES, CONVOLUTION_POST_PADDINGS, CONVOLUTION_PADDINGS = 102, 103, 104, 105
TENSOR_TYPE, TENSOR_SIZE, TENSOR_STRIDES, TENSOR_IS_VIRTUAL = 901, 902, 903, 907
_DIRECTIONS: Final = {
    10: ("convolution", {"x": 704, "w": 703, "y": 705, "how": 702}),
    11: ("convolution, gradient of weights", {"x": 716, "w": 715, "y": 717, "how": 714}),
    12: ("convolution, gradient of input", {"x": 710, "w": 709, "y": 711, "how": 708}),
}
_NAMES: Final = {13: "pointwise", 19: "matmul", 22: "reduction", 31: "reshape", 33: "random numbers"}
_ATTENTION: Final = (19, 41, 43)
_GRAPH_OPERATIONS: Final = 801
_GRAPH: Final = 15
_TYPES: Final = {
    0: "fp32",
    1: "fp64",
    2: "fp16",
    9: "bf16",
    12: "fp8",
    13: "fp8",
    3: "int8",
    4: "int32",
    6: "uint8",
    10: "int64",
}
_MOST_CHARACTERS: Final = 4 << 20  # characters
_MOST_NODES: Final = 4096
_FEWEST_DIMENSIONS: Final = 3  # batch, channels, and one spatial dimension


class TreeError(ValueError):
    """A text is not a valid query to cuDNN. The error text names the line."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a cuDNN descriptor. Floating-point values are stored as integers with the same bits."""

    name: int
    type: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A cuDNN descriptor in a query."""

    kind: int
    attributes: tuple[Attribute, ...]

    def values(self, name: int) -> tuple[int, ...]:
        """Return the values of an attribute. The result is empty if the attribute is not set."""
        return next((attribute.values for attribute in self.attributes if attribute.name == name), ())


def parse(text: str) -> tuple[Node, ...]:
    """Parse the text of a query into cuDNN descriptors.

    Raises:
        TreeError: a line cannot be read, or refers to a line that does not come before it.
    """
    lines = text.splitlines()
    if not lines or len(text) > _MOST_CHARACTERS or len(lines) > _MOST_NODES:
        raise TreeError(f"a query of {len(lines)} descriptors in {len(text)} characters")
    nodes: list[Node] = []
    for number, line in enumerate(lines):
        try:
            kind, *words = line.split()
            attributes = tuple(_attribute(word) for word in words)
            node = Node(int(kind), attributes)
        except ValueError:
            raise TreeError(f"line {number + 1} of a query cannot be read: {line[:80]!r}") from None
        for attribute in attributes:
            if attribute.type == TYPE_DESCRIPTOR and not all(0 <= child < number for child in attribute.values):
                raise TreeError(f"line {number + 1} of a query refers to a line that does not come before it")
        nodes.append(node)
    return tuple(nodes)


def _attribute(word: str) -> Attribute:
    name, kind, values = word.split(":")
    return Attribute(int(name), int(kind), tuple(int(value) for value in values.split(",") if value))


def describe(nodes: tuple[Node, ...]) -> str:
    """Describe a cuDNN query in words, such as "convolution fp16 32x3x224x224 with 64x3x7x7, stride 2, padding 3"."""
    operations = [nodes[index] for graph in nodes if graph.kind == _GRAPH for index in graph.values(_GRAPH_OPERATIONS)]
    if any(operation.kind in _DIRECTIONS for operation in operations):
        return _convolution(nodes)
    sizes = sorted({_size(node) for node in nodes if _is_real(node)}, key=len, reverse=True)
    kind = "attention" if any(operation.kind in _ATTENTION for operation in operations) else "graph"
    named = [_NAMES.get(operation.kind, f"operation {operation.kind}") for operation in operations]
    what = kind if kind == "attention" else f"graph of {', '.join(dict.fromkeys(named)) or 'nothing'}"
    return f"{what} over {', '.join(sizes[:3])}" if sizes else what


@dataclass(frozen=True, slots=True)
class Convolution:
    """A cuDNN graph that consists of one convolution. Tensor sizes are (batch, channels, ...)."""

    operation: str
    type: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    is_channels_last: bool
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def groups(self) -> int:
        """The number of channel groups, inferred from the tensor sizes."""
        return self.x[1] // self.w[1] if self.w[1] else 1

    @property
    def tensor_bytes(self) -> int:
        """The total bytes of input, weights and output."""
        each = {"fp64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2}.get(self.type, 1)
        return each * (prod(self.x) + prod(self.w) + prod(self.y))


def convolution_of(nodes: tuple[Node, ...]) -> Convolution | None:
    """Return the convolution in a cuDNN graph, or None if the graph contains no valid convolution."""
    for operation in nodes:
        if operation.kind in _DIRECTIONS:
            name, places = _DIRECTIONS[operation.kind]
            found = {place: [nodes[child] for child in operation.values(at)] for place, at in places.items()}
            if not all(found.values()):
                return None
            x, w, y, how = (found[place][0] for place in ("x", "w", "y", "how"))
            strides = x.values(TENSOR_STRIDES)
            if not len(strides) == len(x.values(TENSOR_SIZE)) == len(w.values(TENSOR_SIZE)) >= _FEWEST_DIMENSIONS:
                return None
            return Convolution(
                operation=name,
                type=_TYPES.get((x.values(TENSOR_TYPE) or (-1,))[0], "?"),
                x=x.values(TENSOR_SIZE),
                w=w.values(TENSOR_SIZE),
                y=y.values(TENSOR_SIZE),
                is_channels_last=strides[1] == 1 and x.values(TENSOR_SIZE)[1] > 1,
                strides=how.values(CONVOLUTION_STRIDES),
                paddings=how.values(CONVOLUTION_PADDINGS),
                dilations=how.values(CONVOLUTION_DILATIONS),
            )
    return None


def _convolution(nodes: tuple[Node, ...]) -> str:
    found = convolution_of(nodes)
    if found is None:
        return "convolution"
    words = [f"{found.operation} {found.type} {_by(found.x)} with {_by(found.w)}", f"stride {_each(found.strides)}"]
    words += [f"padding {_each(found.paddings)}"] if any(found.paddings) else []
    words += [f"dilation {_each(found.dilations)}"] if any(value != 1 for value in found.dilations) else []
    words += [f"{found.groups} groups"] if found.groups > 1 else []
    words += ["channels last"] if found.is_channels_last else []
    return ", ".join(words)


def _is_real(node: Node) -> bool:
    return node.kind == TENSOR and not any(node.values(TENSOR_IS_VIRTUAL)) and prod(node.values(TENSOR_SIZE)) > 1


def _size(node: Node) -> str:
    return f"{_TYPES.get((node.values(TENSOR_TYPE) or (-1,))[0], '?')} {_by(node.values(TENSOR_SIZE))}"


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _each(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else _by(values)
