"""Batches of every form: what can be used up, what has no rows, what means something of its own."""

import io
import queue
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, IterDataPipe

from tests.training.guard.idioms.idiom import ITEMS, WIDTH, inputs, net, world
from tests.training.guard.world import World


def _from(make: Any, read: Any) -> World:
    """A training whose batches are made of tensors, and read as one."""
    model = net()
    batches = [make(x) for x in inputs()]
    return world(model, batches, lambda batch: model(read(batch)).pow(2).mean())


def generator() -> World:
    return _from(lambda x: {"x": x, "more": (row for row in x)}, lambda b: b["x"] + sum(b["more"]))


def iterator() -> World:
    return _from(lambda x: iter(x.split(2)), next)


def zipped() -> World:
    return _from(lambda x: (x, zip(x, x, strict=True)), lambda b: b[0] + sum(one for one, _ in b[1]))


def file() -> World:
    return _from(lambda x: {"x": x, "text": io.StringIO("2\n3\n")}, lambda b: b["x"] * float(b["text"].readline() or 7))


def a_queue() -> World:
    def make(x: torch.Tensor) -> Any:
        made: Any = queue.Queue()
        for row in x.split(2):
            made.put(row)
        return made

    return _from(make, lambda b: b.get())


class Piped(IterDataPipe):
    """A stream."""

    def __init__(self, x: torch.Tensor) -> None:
        self.left = list(x.split(2))

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.left:
            yield self.left.pop()


def datapipe() -> World:
    return _from(Piped, lambda b: next(iter(b)))


def loader() -> World:
    return _from(lambda x: DataLoader(list(x.split(2)), batch_size=None, shuffle=True), lambda b: torch.cat(list(b)))


@dataclass
class Held:
    """A record with something in it that can be used up."""

    x: torch.Tensor
    more: Any


def iterator_in_a_dataclass() -> World:
    return _from(lambda x: Held(x, iter([2.0, 3.0])), lambda b: b.x * next(b.more))


def packed() -> World:
    model = nn.LSTM(WIDTH, 5, batch_first=True)
    batches = [nn.utils.rnn.pack_sequence([torch.randn(4, WIDTH)]) for _ in range(3)]
    return world(model, batches, lambda batch: model(batch)[1][0].pow(2).mean())


def packed_declared() -> World:
    """The user says that it can be cut: it cannot."""
    found = packed()
    found.options["splittable"] = True
    return found


def padded() -> World:
    """Sequences with their lengths, each with a mean of its own."""
    model = nn.Linear(WIDTH, 4)
    lengths = torch.tensor([5, 3, 1, 2, 4, 5, 2, 3])
    batches = [{"x": x, "lengths": lengths} for x in inputs(ITEMS, 5, WIDTH)]

    def loss_of(batch: Any) -> torch.Tensor:
        mask = (torch.arange(5) < batch["lengths"][:, None]).to(torch.float64)
        each = (model(batch["x"]).pow(2).mean(-1) * mask).sum(1) / batch["lengths"]
        return each.mean()

    return world(model, batches, loss_of)


def nested_strided() -> World:
    model = nn.Linear(WIDTH, 4)
    batches = [torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(2, WIDTH)]) for _ in range(3)]
    return world(model, batches, lambda batch: torch.nested.to_padded_tensor(model(batch), 0.0).pow(2).sum())


def nested_jagged() -> World:
    model = nn.Linear(WIDTH, 4)
    batches = [
        torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(2, WIDTH)], layout=torch.jagged)
        for _ in range(3)
    ]
    return world(model, batches, lambda batch: model(batch).values().pow(2).mean())


def sparse() -> World:
    model = nn.Linear(WIDTH, 4)
    return world(
        model, [x.relu().to_sparse() for x in inputs()], lambda b: (b @ model.weight.T).to_dense().pow(2).mean()
    )


class Graphs:
    """Graphs in one, as PyG has them: nodes, edges, and to which graph each node belongs."""

    def __init__(self, x: torch.Tensor) -> None:
        self._store = {"x": x, "edge_index": torch.tensor([[0, 1, 4, 5], [1, 2, 5, 6]]), "graph": torch.arange(8) // 4}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_store"][name]
        except KeyError:
            raise AttributeError(name) from None


def _of_graphs(x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, model: nn.Module) -> torch.Tensor:
    beside = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    pooled = torch.zeros(2, 4).index_add(0, graph, model(x + beside))
    return pooled.pow(2).mean()


def pyg() -> World:
    model = net()
    return world(model, [Graphs(x) for x in inputs()], lambda b: _of_graphs(b.x, b.edge_index, b.graph, model))


def pyg_written_to() -> World:
    """The loss function rebinds what the batch has, as transforms do."""
    model = net()

    def loss_of(batch: Graphs) -> torch.Tensor:
        batch._store["x"] = batch._store["x"] * 1.5
        return _of_graphs(batch.x, batch.edge_index, batch.graph, model)

    return world(model, [Graphs(x) for x in inputs()], loss_of)


def graph_as_a_dict() -> World:
    """Nodes and edges as plain tensors: nothing says that rows are no items."""
    model = net()
    batches = [
        {"x": x, "edges": torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 0]])}
        for x in inputs()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        x, edges = batch["x"], batch["edges"] % len(batch["x"])
        return model(x + x[edges[:, 1]]).pow(2).mean()

    return world(model, batches, loss_of)


class Graph:
    """A graph whose frames hold features by name, as DGL has them, which the loss function sets."""

    __slots__ = ("edges", "ndata")

    def __init__(self, x: torch.Tensor) -> None:
        self.ndata = {"x": x}
        self.edges = (torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))


def dgl() -> World:
    model = net()

    def loss_of(graph: Graph) -> torch.Tensor:
        source, target = graph.edges
        x = graph.ndata["x"]
        graph.ndata["x"] = x + torch.zeros_like(x).index_add(0, target, x[source])
        return model(graph.ndata["x"]).pow(2).mean()

    return world(model, [Graph(x) for x in inputs()], loss_of)


def batch_encoding() -> World:
    from transformers import BatchEncoding

    return _from(lambda x: BatchEncoding({"x": x, "y": x}), lambda b: b["x"] + b["y"])


@dataclass(frozen=True)
class Record:
    """A record of rows."""

    x: torch.Tensor
    names: list[str]


def a_dataclass() -> World:
    return _from(lambda x: Record(x, [str(n) for n in range(ITEMS)]), lambda b: b.x)


class Rows(NamedTuple):
    """Rows by name."""

    x: torch.Tensor
    y: torch.Tensor


def a_named_tuple() -> World:
    return _from(lambda x: Rows(x, x), lambda b: b.x * b.y)


class TensorDict(MutableMapping):
    """Tensors of one batch size by name, whose constructor wants that size: as tensordict's."""

    def __init__(self, source: dict[str, torch.Tensor], batch_size: int) -> None:
        self._source, self.batch_size = dict(source), batch_size

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._source[key]

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self._source[key] = value

    def __delitem__(self, key: str) -> None:
        del self._source[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


def tensordict() -> World:
    """The loss function writes its results into it, as tensordict's modules do."""

    def read(batch: TensorDict) -> torch.Tensor:
        batch["x"] = batch["x"] * 2
        return batch["x"]

    return _from(lambda x: TensorDict({"x": x}, ITEMS), read)


def a_defaultdict() -> World:
    return _from(lambda x: defaultdict(list, {"x": x}), lambda b: b["x"])


def an_ordered_dict() -> World:
    return _from(lambda x: OrderedDict(x=x, y=x), lambda b: b["x"] - b["y"] * 0.5)


def a_user_dict() -> World:
    return _from(lambda x: UserDict({"x": x}), lambda b: b["x"])


def an_array() -> World:
    """An array of numpy that the loss function writes into."""

    def read(batch: Any) -> torch.Tensor:
        batch["x"] *= 1.5
        return torch.from_numpy(batch["x"])

    return _from(lambda x: {"x": x.numpy().copy(), "y": torch.zeros(ITEMS)}, read)


def rows_of_numpy_numbers() -> World:
    """Single numbers of numpy, which all items share."""
    return _from(lambda x: {"x": x, "scale": numpy.float64(1.5)}, lambda b: b["x"] * float(b["scale"]))


def a_list_of_items() -> World:
    """One tensor for each item, all of one length: rows are not items."""
    model = net()
    batches = [list(x.unbind()) for x in inputs()]
    return world(model, batches, lambda batch: model(torch.stack(batch)).pow(2).mean())


def a_namespace() -> World:
    return _from(lambda x: SimpleNamespace(x=x), lambda b: b.x)


def written_to() -> World:
    """The loss function writes into a tensor of the batch."""
    return _from(lambda x: {"x": x}, lambda b: b["x"].mul_(1.5))


def written_to_unseen() -> World:
    """The same, so that no version tells."""
    return _from(lambda x: {"x": x}, lambda b: b["x"].data.mul_(1.5))


def a_shared_table() -> World:
    """What all items share has another length."""
    model = net()
    table = torch.randn(11, 4)
    batches = [{"x": x, "table": table} for x in inputs()]
    return world(model, batches, lambda batch: (model(batch["x"]) @ batch["table"].T).pow(2).mean())


def a_second_loader_in_the_loss() -> World:
    """Semi-supervised: the loss function takes the next unlabelled batch itself."""
    model = net()
    unlabelled = iter([torch.randn(4, WIDTH) for _ in range(9)])
    return world(model, inputs(), lambda x: model(x).pow(2).mean() + model(next(unlabelled)).mean())
