"""What a reduction makes of the numbers of several ranks is what a real Gloo makes of them."""

from functools import cache
from typing import Any

from tests.shared.fresh import answer

CODE = """
import ullage
ullage.emulate("T4")
import datetime, threading
import torch, torch.distributed as dist
from ullage.gpu.values.ranks import reduced

RANKS = 3
OPERATIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = (torch.int64, torch.int32, torch.uint8)
numbers = torch.randint(0, 200, (RANKS, 50), generator=torch.Generator().manual_seed(0))
store, real = dist.HashStore(), {}

def rank(number):
    gloo = dist.ProcessGroupGloo(store, number, RANKS, datetime.timedelta(minutes=15))
    for operation in OPERATIONS:
        for dtype in DTYPES:
            held, options = numbers[number].to(dtype, copy=True), dist.AllreduceOptions()
            options.reduceOp = getattr(dist.ReduceOp, operation)
            gloo.allreduce([held], options).wait()
            if number == 0:
                real[f"{operation} {dtype}"] = held.tolist()

threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
for each in threads:
    each.start()
for each in threads:
    each.join()
ours = {f"{operation} {dtype}": reduced(numbers.to(dtype), operation).tolist()
        for operation in OPERATIONS for dtype in DTYPES}
of_nccl = [reduced(torch.tensor(values), operation).tolist() for values, operation in [
    ([[5], [8]], "AVG"), ([[-5], [0]], "AVG"), ([[0.5], [1.0]], "AVG"),
    ([[True, False], [False, False]], "SUM"), ([[True, False], [False, False]], "MAX"),
    ([[True, True], [True, False]], "MIN"), ([[True, True], [True, False]], "PRODUCT"),
]]
tell([ours, real, of_nccl])
"""


@cache
def told() -> list[Any]:
    return answer(CODE)


def test_it_is_what_gloo_makes_of_them() -> None:
    ours, real, _ = told()
    assert len(real) == 21
    assert ours == real


def test_averages_and_booleans_are_those_of_nccl() -> None:
    """A mean of whole numbers is cut off, and PyTorch has NCCL sum booleans by their maximum."""
    assert told()[2] == [[6], [-2], [0.75], [True, False], [True, False], [True, False], [True, False]]
