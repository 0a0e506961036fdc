"""A small language model on texts of many lengths: how batches are made is the argument."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--items", type=int, default=240)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--kind", default="random")
parser.add_argument("--collate", default="longest")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--longest", type=int, default=40)
parser.add_argument("--drop-last", action="store_true")
parser.add_argument("--new-loader", action="store_true")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--keep", action="store_true")
parser.add_argument("--empty-cache", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--graphs", action="store_true", help="a CUDA graph for each length")
options = parser.parse_args()

torch.manual_seed(1)
random.seed(2)
LENGTHS = [1 + int(options.longest * random.random() ** 3) for _ in range(options.items)]


class Texts(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        return torch.full((LENGTHS[index],), index % 97)


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.full((length,), 1) for length in LENGTHS)


def collate(items):
    if options.collate == "packed":
        return torch.cat(items)[None]
    length = max(map(len, items))
    if options.collate == "multiple":
        length = -(-length // 8) * 8
    batch = torch.zeros(len(items), length, dtype=torch.long)
    for row, item in zip(batch, items, strict=True):
        row[: len(item)] = item
    return batch


class Grouped(torch.utils.data.Sampler):
    def __len__(self):
        return len(LENGTHS)

    def __iter__(self):
        order = torch.randperm(len(LENGTHS)).tolist()
        for start in range(0, len(order), 64):
            yield from sorted(order[start : start + 64], key=lambda index: -LENGTHS[index])


def loader():
    kinds = {"random": {"shuffle": True}, "grouped": {"sampler": Grouped()}, "stream": {}}
    if options.ddp:
        kinds["random"] = {"sampler": torch.utils.data.DistributedSampler(Texts())}
    return DataLoader(
        Stream() if options.kind == "stream" else Texts(),
        batch_size=options.batch,
        collate_fn=collate,
        drop_last=options.drop_last,
        num_workers=options.workers,
        pin_memory=bool(options.workers),
        **kinds[options.kind],
    )


if options.ddp:
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(torch.distributed.get_rank())
model = nn.Sequential(
    nn.Embedding(100, options.width),
    nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, batch_first=True, dropout=0.0),
    nn.Linear(options.width, 1000),
).cuda()
if options.compile:
    model = torch.compile(model)
if options.ddp:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
evaluation = DataLoader(Texts(), batch_size=4, collate_fn=collate)
with torch.no_grad():
    for number, batch in enumerate(evaluation):
        if number == 3:
            break
        model(batch.cuda())

graphs = {}


def graphed(batch):
    """Replay the forward and backward pass of a batch of this shape; the first time, warm up and capture them."""
    if batch.shape not in graphs:
        own = batch.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            nn.functional.cross_entropy(model(own).flatten(0, 1), own.flatten()).backward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            nn.functional.cross_entropy(model(own).flatten(0, 1), own.flatten()).backward()
        graphs[batch.shape] = (graph, own)
    graph, own = graphs[batch.shape]
    own.copy_(batch)
    graph.replay()


train = loader()
kept = []
for _ in range(options.epochs):
    if options.new_loader:
        train = loader()
    for number, batch in enumerate(train):
        batch = batch.cuda()
        if options.graphs:
            graphed(batch)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            continue
        logits = model(batch)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch.flatten()) / options.accumulate
        loss.backward()
        if options.keep:
            kept.append(logits.detach())
        if options.empty_cache:
            torch.cuda.empty_cache()
        if (number + 1) % options.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
