"""Small products are worked out from what went in, and count as drawn; what an optimizer updates moves a little."""

from functools import cache
from typing import Any

from tests.shared.fresh import answer

CODE = """
import os, ullage
ullage.emulate("A100", values_seed=int(os.environ["SEED"]))
import torch
from torch import nn
from ullage.gpu.values.start import current

torch.manual_seed(0)

def read(tensor):
    before = dict(current().reads.counts)
    value = tensor.float().cpu()
    [read] = [each for each, count in current().reads.counts.items() if count != before.get(each, 0)]
    return value, read.certainty.name

def beside(work, *arguments):
    "How far a result on the card is from the CPU's, and how well it is known."
    value, certainty = read(work(*(each.cuda() for each in arguments)))
    real = work(*arguments).float()
    return [float((value - real).abs().max() / real.abs().max()), certainty]

def scores(rows, width=64):
    return beside(lambda x, w: x @ w, torch.randn(rows, 512), torch.randn(512, width))

x, w, b = torch.randn(64, 32), torch.randn(32, 16), torch.randn(16)
image, kernel = torch.randn(2, 3, 16, 16), torch.randn(8, 3, 3, 3)
found = {
    "mm": beside(torch.mm, x, w),
    "addmm": beside(torch.addmm, b, x, w),
    "mv": beside(torch.mv, x, w[:, 0]),
    "bmm": beside(torch.bmm, x.view(4, 16, 32), torch.randn(4, 32, 8)),
    "linear": beside(nn.functional.linear, torch.randn(4, 8, 32), w.T.contiguous(), b),
    "convolution": beside(lambda x, w: nn.functional.conv2d(x, w, stride=2, padding=1), image, kernel),
    "half": beside(lambda x, w: x @ w, x.half(), w.half()),
    "bfloat16": beside(lambda x, w: x @ w, x.bfloat16(), w.bfloat16()),
    "two": beside(lambda x, w: (x @ w).relu() @ w.T, x, w),
    "small": scores(512),
    "with many multiplications": scores(512, width=1024),
}

layer = nn.Linear(64, 32, bias=False).cuda()
before = layer.weight.detach().cpu()
noted = layer.weight.detach().sum()  # worked out after the steps
optimizer = torch.optim.AdamW(layer.parameters(), 1e-3, foreach=True)
moves = []
for _ in range(2):
    layer(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    moves.append((layer.weight.detach().cpu() - before) / before.square().mean().sqrt())
first, second = moves
found["noted before"] = [float(noted), float(before.sum())]
found["moved"] = [float(each.square().mean().sqrt()) for each in moves]
found["rows"] = float(first.mean(1).square().mean().sqrt())
found["way"] = float(nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0))
found["a move"] = float(first[0, 0])

def reads_of(work):
    before = dict(current().reads.counts)
    count = work()
    return [count, *({(str(each.kind), each.operation, each.certainty.name)
                      for each, number in current().reads.counts.items() if number != before.get(each, 0)})]

places, numbers = torch.randint(0, 20, (2, 60)), torch.rand(60)
def sparse(device):
    return torch.sparse_coo_tensor(places, numbers, (20, 20)).to(device).coalesce()
on_card, on_host, wanted = sparse("cuda"), sparse("cpu"), torch.tensor([1, -1, 5, 5])
found["selected"] = reads_of(lambda: on_card.index_select(1, wanted.cuda())._nnz())
found["selected on the host"] = on_host.index_select(1, wanted % 20)._nnz()
found["multiplied"] = reads_of(lambda: (on_card @ on_card)._nnz())
found["by numbers"] = reads_of(lambda: (on_card * on_card)._nnz())
found["multiplied on the host"] = (on_host @ on_host)._nnz()
tell(found)
"""


@cache
def found(seed: int) -> dict[str, Any]:
    """Return what is found with a seed."""
    told: dict[str, Any] = answer(CODE, environment={"SEED": str(seed)})
    return told


def test_a_small_product_is_what_it_is_on_the_cpu() -> None:
    """As far as floats go; it counts as drawn, though all that went in was known."""
    told = found(0)
    bounds = {"half": 1e-2, "bfloat16": 1e-1}
    for name in ("mm", "addmm", "mv", "bmm", "linear", "convolution", "half", "bfloat16", "two", "small"):
        off, certainty = told[name]
        assert off < bounds.get(name, 1e-5), name
        assert certainty == "DRAWN", name
    off, certainty = told["with many multiplications"]
    assert off > 0.1
    assert certainty == "DRAWN"


def test_an_optimizer_moves_weights() -> None:
    """By hundredths, a row alike, each step in the same direction, and with another seed in another."""
    told = found(0)
    first, second = told["moved"]
    assert 0.005 < first < second < 0.2
    assert told["rows"] > first / 4  # independent numbers of 64 inputs would have a mean of an eighth
    assert told["way"] > 0.9
    assert found(1)["a move"] != told["a move"]


def test_what_was_noted_before_an_update_does_not_move() -> None:
    """A sum of weights before two steps, worked out after them, is that of the weights before."""
    noted, before = found(0)["noted before"]
    assert abs(noted - before) < 1e-3 * abs(before)


def test_sparse_results() -> None:
    """What `index_select` selects and how many elements a product has follow from where elements are.

    How many are left of a product number by number is unknown, and said.
    """
    told = found(0)
    count, *reads = told["selected"]
    assert count == told["selected on the host"]
    assert reads == [["shape", "index_select", "KNOWN"]]
    count, *reads = told["multiplied"]
    assert count == told["multiplied on the host"]
    assert {tuple(each)[0::2] for each in reads} == {("shape", "KNOWN")}
    assert ["shape", "mul", "UNKNOWN"] in told["by numbers"]
