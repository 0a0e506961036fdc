"""Threads that were there before CUDA was initialised: what they do is seen, or what it may have changed is unknown."""

import pytest

from tests.shared.fresh import answer

WORKERS = """
import _thread, queue, threading

class Worker:
    def __init__(self, start):
        self.tasks, self.done = queue.Queue(), queue.Queue()
        start(self.work)

    def work(self):
        while True:
            self.done.put(self.tasks.get()())

    def ask(self, task):
        self.tasks.put(task)
        return self.done.get()

def by_threading(work):
    threading.Thread(target=work, daemon=True).start()

def by_hand(work):
    _thread.start_new_thread(work, ())

earliest = Worker(by_threading)
import ullage
ullage.emulate("T4", values=MODE)
import torch
between = Worker(by_threading)
unseen = Worker(by_hand)
from ullage.gpu.values.start import current

def read(tensor):
    reads = current().reads
    before = dict(reads.counts)
    value = tensor.tolist()
    return [value, *(read.certainty.name for read, count in reads.counts.items() if count != before.get(read, 0))]
"""
WRITES = """
found = {}
for name, worker in (("main", None), ("between", between), ("earliest", earliest), ("unseen", unseen)):
    written = torch.zeros(3, dtype=torch.int64, device="cuda")
    other = torch.ones(2, dtype=torch.int64, device="cuda")
    write = lambda: written.add_(1).shape
    write() if worker is None else worker.ask(write)
    found[name] = [read(written), read(other)]
    part = torch.empty(4, dtype=torch.int64, device="cuda")
    write = lambda: part.fill_(7).shape
    write() if worker is None else worker.ask(write)
    part[0] = 1
    found[name].append(read(part.sum()))
after = torch.ones(2, dtype=torch.int64, device="cuda")
found["after"] = [read(after)]
"""


def test_what_an_earlier_thread_writes_is_not_called_known() -> None:
    """A thread from after `import torch` is seen; of one that is not, all that it may have written is unknown."""
    found = answer(f"MODE = 'on'\n{WORKERS}{WRITES}\ntell(found)")
    for name in ("main", "between"):
        assert found[name] == [[[1, 1, 1], "KNOWN"], [[1, 1], "KNOWN"], [22, "KNOWN"]], name
    for name in ("earliest", "unseen"):
        assert [each[1] for each in found[name]] == ["UNKNOWN"] * 3, name
    assert found["after"] == [[[1, 1], "KNOWN"]]


def test_autograd_and_copies_are_no_unseen_threads() -> None:
    """Threads of PyTorch's own that work for one that is seen leave what is known as it is."""
    found = answer(
        f"MODE = 'on'\n{WORKERS}"
        """
lengths = torch.tensor([1, 2, 3], device="cuda")
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(layer.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 8)), batch_size=4, pin_memory=True)
for (batch,) in data:
    layer(batch.cuda(non_blocking=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
tell(read(lengths))
"""
    )
    assert found == [[1, 2, 3], "KNOWN"]


@pytest.mark.parametrize("name", ["between", "earliest"])
def test_everything_computed_says_what_it_has_not_seen(name: str) -> None:
    """With `values="all"` a thread is computed for, or named among the failures."""
    found, failures = answer(
        f"MODE = 'all'\n{WORKERS}"
        f"""
torch.zeros(1, device="cuda")
written = torch.zeros(3, dtype=torch.int64, device="cuda")
{name}.ask(lambda: written.add_(1).shape)
tell([written.tolist(), current().failures])
"""
    )
    if name == "between":
        assert found == [1, 1, 1]
        assert failures == {}
    else:
        assert "thread" in str(failures)
