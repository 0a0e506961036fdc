"""What values take of the host's memory: bounded also while one is worked out, and given back."""

from tests.shared.fresh import answer

START = """
import ullage
ullage.emulate("A100")
import torch
from ullage.gpu.values.start import current

def read(tensor):
    reads = current().reads
    before = dict(reads.counts)
    value = tensor.tolist()
    return [value, *(read.certainty.name for read, count in reads.counts.items() if count != before.get(read, 0))]

MIB = 1 << 20
torch.zeros(1, device="cuda")
evaluation = current().evaluation
"""


def test_what_is_there_for_a_moment_counts() -> None:
    """A value that needs more than the bound while it is worked out is unknown; the next one is not."""
    found = answer(
        START
        + """
evaluation.budget_bytes = 48 * MIB
x = torch.arange(2 * MIB, device="cuda")  # 16 MiB
large = read(torch.maximum(torch.maximum(x + 1, x + 2), torch.maximum(x + 3, x + 4)).max())
small = read(torch.arange(5).to("cuda").max())
tell([large, small, evaluation.peak_bytes, evaluation.passing_bytes])
"""
    )
    large, small, peak_bytes, passing_bytes = found
    assert large[1] == "UNKNOWN"
    assert small == [4, "KNOWN"]
    assert peak_bytes <= 48 << 20
    assert passing_bytes == 0


def test_small_tensors_are_known_next_to_large_ones_that_have_filled_the_room() -> None:
    """As the JSON of 4-bit weights is read back after gigabytes of them were loaded; of these some are not kept."""
    found = answer(
        START
        + """
evaluation.budget_bytes = 64 * MIB
weights = [torch.full((8 * MIB,), number, dtype=torch.uint8).to("cuda") for number in range(16)]
texts = [torch.frombuffer(bytearray(b'{"blocksize": 64, "number": %03d}' % number * 4), dtype=torch.uint8).to("cuda")
         for number in range(1000)]
read_back = [bytes(text.cpu().tolist()) for text in texts]
expected = [b'{"blocksize": 64, "number": %03d}' % number * 4 for number in range(1000)]
tell([read_back == expected, read(weights[-1].max())[1], evaluation.peak_bytes])
"""
    )
    are_equal, last_weight, peak_bytes = found
    assert are_equal
    assert last_weight == "UNKNOWN", "the room was not filled"
    assert peak_bytes <= 64 << 20


def test_memory_is_given_back_at_the_end() -> None:
    """After `stop` nothing is held, in no thread, and nothing is known."""
    found = answer(
        START
        + """
import threading
kept = [torch.arange(MIB).to("cuda") for _ in range(8)]
held = evaluation.kept_bytes
again, ended = threading.Event(), threading.Event()

def work():
    again.wait()
    kept.append(torch.arange(MIB).to("cuda") + 1)

thread = threading.Thread(target=work)
thread.start()
current().stop()
after = evaluation.kept_bytes
again.set()
thread.join()
tell([held, after, evaluation.kept_bytes, len(current().contents), kept[-1].max().item()])
"""
    )
    held, after, at_last, count, read = found
    assert held >= 64 << 20
    assert [after, at_last, count, read] == [0, 0, 0, 0]


def test_a_tensor_that_grows_holds_what_it_held() -> None:
    """`resize_` copies what is there; also where that is not worked out yet, and where it shrinks."""
    found = answer(
        START
        + """
lengths = torch.tensor([3, 1, 2], device="cuda") * 2
lengths.resize_(1000)
lengths[3:] = 7
shrunk = torch.arange(1000, device="cuda").resize_(3)
drawn = (torch.randn(4, 4, device="cuda") @ torch.randn(4, 4, device="cuda")).resize_(4000)
fresh = torch.empty(0, dtype=torch.int64, device="cuda").resize_(4)
tell([read(fresh)[1], read(lengths[:4]), read(lengths.max()), read(shrunk), read(drawn[:4])[1]])
"""
    )
    assert found == ["UNKNOWN", [[6, 2, 4, 7], "KNOWN"], [7, "KNOWN"], [[0, 1, 2], "KNOWN"], "DRAWN"]


def test_indices_of_an_unknown_mask_stay_unknown() -> None:
    """What an operator has written of which nothing is known is not new memory: one number more makes nothing known."""
    found = answer(
        START
        + """
mask = torch.empty(64, dtype=torch.bool, device="cuda")
indices = mask.nonzero()
unknown = torch.empty(64, dtype=torch.int64, device="cuda")
found, _ = unknown.unique(return_inverse=True)
found.resize_(4)
found[0] = 1
tell([list(indices.shape), read(found.sum())[1]])
"""
    )
    assert found[1] == "UNKNOWN"


def test_a_count_takes_no_indices() -> None:
    """What is too large to be kept is not made: how many there are is known without it."""
    told = answer(
        START
        + """
import resource
mask = torch.ones(1 << 25, dtype=torch.bool).to("cuda")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
indices = mask.nonzero()
grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
counts = [read.certainty.name for read in current().reads.counts if read.operation == "nonzero"]
tell([list(indices.shape), counts, grown_kib])
"""
    )
    shape, certainties, grown_kib = told
    assert shape == [1 << 25, 1]
    assert certainties == ["KNOWN"]
    assert grown_kib < 128 << 10, "the indices have 256 MiB"
