"""PyTorch's idiom for a step as a CUDA graph: warm-up on another stream, capture, replays (never: no capture)."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
static_input = torch.randn(4096, 1024, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(static_input).square().mean().backward()
    optimizer.step()


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
if sys.argv[1] == "never":
    while True:
        step()
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    model(static_input).square().mean().backward()
    optimizer.step()
print("captured", torch.cuda.memory_reserved(), flush=True)
while True:
    static_input.copy_(torch.randn(4096, 1024, device="cuda"))
    graph.replay()
    print("replayed", flush=True)
