"""What writes memory unseen, or holds more than one block, is never called known; and scripts that use it run."""

from tests.shared.fresh import answer

SCRIPT = """
import math, threading
import ullage
ullage.emulate("T4")
import torch
from torch import nn
from ullage.gpu.values.content import Certainty
from ullage.gpu.values.start import current

def certainty(tensor):
    reads = current().reads
    before = dict(reads.counts)
    value = tensor.tolist()
    found = [read.certainty.name for read, count in reads.counts.items() if count != before.get(read, 0)]
    return [value, *found]

embedding = nn.Embedding(100, 8, sparse=True).cuda()
optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
embedding(torch.tensor([1, 2, 2], device="cuda")).sum().backward()
optimizer.step()
dense = embedding.weight.grad.to_dense() + embedding.weight.grad
nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda")
nested.mul_(2)

number = torch.zeros(1, dtype=torch.long, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    number.add_(1)
number.zero_()
known = certainty(number)
for _ in range(5):
    graph.replay()
replayed = certainty(number)

scores = (torch.randn(4, 16, device="cuda") @ torch.randn(16, 8, device="cuda")).masked_fill(
    torch.tensor([False, True] * 4, device="cuda"), -math.inf
)
kept = [int((scores != -math.inf).sum()), int(torch.isinf(scores).sum())]

norm = nn.BatchNorm1d(8).cuda()
norm(torch.randn(32, 8, device="cuda"))
updated = certainty((norm.running_mean != 0).any())

listed = torch.tensor([3, 4, 5], device="cuda")
torch._foreach_add_([listed], 1)
listed[0] = 1
several = certainty(listed.max())

torch.manual_seed(0)
expected = [torch.randn(1).item() for _ in range(50)]
torch.manual_seed(0)
def draws():
    for _ in range(50):
        (torch.randn(1000, device="cuda") > 0).sum().item()
thread = threading.Thread(target=draws)
thread.start()
found = [torch.randn(1).item() for _ in range(50)]
thread.join()
tell([list(dense.shape), known, replayed[1:], kept, updated[1:], several, found == expected])
"""


def test_what_is_not_seen_is_not_known() -> None:
    """Sparse and nested tensors run; replays and statistics are not known. Infinities are counted."""
    dense, known, replayed, kept, updated, several, same = answer(SCRIPT)
    assert dense == [100, 8]
    assert known == [[0], "KNOWN"]
    assert replayed == ["UNKNOWN"]
    assert kept == [16, 16]
    assert "KNOWN" not in updated
    assert several == [6, "KNOWN"]
    assert same, "the script's own random numbers changed"


NOTHING = """
import ullage
ullage.emulate("T4")
import torch
from ullage.gpu.values.start import current
found = [torch.tensor([], device="cuda").cpu().tolist(), torch.empty(0, 4, device="cuda").tolist()]
tell([found, [read.certainty.name for read in current().reads.counts]])
"""


def test_a_copy_of_nothing_reads_nothing() -> None:
    """DeepSpeed's ZeRO 3 copies an empty list of numbers, and its verdict was "unknown" for that."""
    assert answer(NOTHING) == [[[], []], []]
