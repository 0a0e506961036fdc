"""Programs for graphs that are pooled."""

from typing import Any

import torch
from programs.registry import STEPS, Note, program, trained
from torch import nn


def _graph_batches(device: str) -> list[Any]:
    from torch_geometric.data import Batch, Data

    batches = []
    for _ in range(STEPS):
        graphs = []
        for _ in range(32):
            nodes = int(torch.randint(20, 60, ()))
            graphs.append(Data(x=torch.randn(nodes, 16), edge_index=torch.randint(0, nodes, (2, nodes * 4))))
        batches.append(Batch.from_data_list(graphs).to(device))
    return batches


class _Pooled(nn.Module):
    def __init__(self, pool: Any, note: Note) -> None:
        from torch_geometric.nn import GraphConv

        super().__init__()
        self.convolutions = nn.ModuleList([GraphConv(16, 64), GraphConv(64, 64)])
        self.pools = nn.ModuleList([pool(64, ratio=0.8), pool(64, ratio=0.5)])
        self.head = nn.Linear(128, 2)
        self.note = note

    def forward(self, batch: Any) -> torch.Tensor:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        x, edges, owner = batch.x, batch.edge_index, batch.batch
        for convolution, pool in zip(self.convolutions, self.pools, strict=True):
            x = convolution(x, edges).relu()
            x, edges, _, owner, *_ = pool(x, edges, None, owner)
            self.note("nodes", x.shape[0])
            self.note("edges", edges.shape[1])
        return self.head(torch.cat([global_max_pool(x, owner), global_mean_pool(x, owner)], 1))


def _graphs(pool: Any, device: str, note: Note) -> None:
    model, optimizer = trained(_Pooled(pool, note).to(device))
    for batch in _graph_batches(device):
        result = model(batch)
        nn.functional.cross_entropy(result, torch.randint(0, 2, (32,)).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def topk_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with TopKPooling of PyG."""
    from torch_geometric.nn import TopKPooling

    _graphs(TopKPooling, device, note)


@program
def sag_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with SAGPooling of PyG."""
    from torch_geometric.nn import SAGPooling

    _graphs(SAGPooling, device, note)


@program
def edge_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with EdgePooling of PyG, which merges nodes along the edges with the best scores."""
    from torch_geometric.nn import EdgePooling, GraphConv, global_mean_pool

    first, second = GraphConv(16, 64), GraphConv(64, 64)
    pools = nn.ModuleList([EdgePooling(64), EdgePooling(64)])
    head = nn.Linear(64, 2)
    _, optimizer = trained(nn.ModuleList([first, second, pools, head]).to(device))
    for batch in _graph_batches(device):
        x, edges, owner = batch.x, batch.edge_index, batch.batch
        for convolution, pool in zip((first, second), pools, strict=True):
            x, edges, owner, _ = pool(convolution(x, edges).relu(), edges, owner)
            note("nodes", x.shape[0])
            note("edges", edges.shape[1])
        head(global_mean_pool(x, owner)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def asap_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with ASAPooling of PyG, whose clusters are joined by products of sparse matrices."""
    from torch_geometric.nn import ASAPooling, GraphConv, global_mean_pool

    convolution, pool, head = GraphConv(16, 64), ASAPooling(64, ratio=0.5), nn.Linear(64, 2)
    _, optimizer = trained(nn.ModuleList([convolution, pool, head]).to(device))
    for batch in _graph_batches(device):
        x, edges, _, owner, _ = pool(convolution(batch.x, batch.edge_index).relu(), batch.edge_index, None, batch.batch)
        note("edges", edges.shape[1])
        head(global_mean_pool(x, owner)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def score_pooling(device: str, note: Note) -> None:
    """Pool with TopKPooling of PyG by a least score, after attention along the edges."""
    from torch_geometric.nn import GATConv, TopKPooling, global_mean_pool

    convolution, pool, head = GATConv(16, 16, heads=4), TopKPooling(64, min_score=0.03), nn.Linear(64, 2)
    _, optimizer = trained(nn.ModuleList([convolution, pool, head]).to(device))
    for batch in _graph_batches(device):
        x = convolution(batch.x, batch.edge_index).relu()
        x, edges, _, owner, *_ = pool(x, batch.edge_index, None, batch.batch)
        note("nodes", x.shape[0])
        note("edges", edges.shape[1])
        head(global_mean_pool(x, owner)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def learned_edges(device: str, note: Note) -> None:
    """Leave out the edges that a network of both ends finds unlikely, and go on with the rest."""
    from torch_geometric.nn import GCNConv

    first, second = GCNConv(16, 64), GCNConv(64, 64)
    judge = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1))
    _, optimizer = trained(nn.ModuleList([first, second, judge]).to(device))
    for batch in _graph_batches(device):
        x = first(batch.x, batch.edge_index).relu()
        chance = judge(torch.cat([x[batch.edge_index[0]], x[batch.edge_index[1]]], 1)).sigmoid()[:, 0]
        keep = chance > 0.5
        edges = batch.edge_index[:, keep]
        note("edges", edges.shape[1])
        second(x, edges, chance[keep]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def hub_pooling(device: str, note: Note) -> None:
    """Pool graphs with hubs, whose edges lead to the first nodes mostly, by a learned score above the graph's mean."""
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import subgraph

    first, second, score = SAGEConv(16, 64), SAGEConv(64, 64), nn.Linear(64, 1)
    _, optimizer = trained(nn.ModuleList([first, second, score]).to(device))
    for _ in range(STEPS):
        nodes = 1500
        ends = (torch.rand(2, 8000).pow(3) * nodes).long()
        x, edges = torch.randn(nodes, 16).to(device), ends.to(device)
        x = first(x, edges).relu()
        values = score(x)[:, 0]
        kept = (values > values.mean()).nonzero()[:, 0]
        note("nodes", len(kept))
        edges, _ = subgraph(kept, edges, relabel_nodes=True, num_nodes=nodes)
        note("edges", edges.shape[1])
        second(x[kept], edges).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
