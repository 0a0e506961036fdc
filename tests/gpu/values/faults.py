"""The process that does what may go wrong, without values and then with them: `python -m tests.gpu.values.faults`.

A line of JSON for each case: how values were, the case's name, and what it came to.
"""

import gc
import json
import traceback
from collections.abc import Callable
from typing import Any

import ullage

ullage.emulate("A100", values="off")

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from ullage.gpu.emulator import library  # noqa: E402
from ullage.gpu.values.choice import ValuesChoice  # noqa: E402
from ullage.gpu.values.start import Values, current  # noqa: E402

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a case by its name."""
    CASES[function.__name__] = function
    return function


def certainties() -> list[list[str]]:
    """Return how well the reads since the last case were known."""
    return [[str(read.kind), read.certainty.name] for read in current().reads.counts]


def error_of(work: Callable[[], Any]) -> list[str]:
    """Return the type and text of the error that something ends with."""
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error).partition("\nException raised from")[0]]
    return ["none", ""]


LIBRARY = torch.library.Library("ullage_test", "DEF")
LIBRARY.define("card_only(Tensor x) -> Tensor")
LIBRARY.impl("card_only", lambda x: torch.empty_like(x), "CUDA")
LIBRARY.define("written(Tensor(a!) x) -> ()")
LIBRARY.impl("written", lambda x: None, "CUDA")


@case
def operator_of_the_card_only() -> Any:
    """What the host has no kernel for is unknown from then on, and the run goes on."""
    x = torch.arange(6, device="cuda")
    y = torch.ops.ullage_test.card_only(x)
    z = torch.arange(6, device="cuda")
    torch.ops.ullage_test.written(z)
    return [int(y.sum()), int(z.sum()), int(x.sum()) in (0, 15)]


LIBRARY.define("pure(Tensor x) -> Tensor")
LIBRARY.impl("pure", lambda x: torch.empty_like(x), "CUDA")
LIBRARY.impl("pure", lambda x: x * 2, "CPU")
LIBRARY.define("mutates(Tensor(a!) x) -> Tensor")
LIBRARY.impl("mutates", lambda x: torch.empty_like(x), "CUDA")
LIBRARY.impl("mutates", lambda x: x.add_(1) * 2, "CPU")
LIBRARY.define("fails_on_the_host(Tensor x) -> Tensor")
LIBRARY.impl("fails_on_the_host", lambda x: torch.empty_like(x), "CUDA")
LIBRARY.impl("fails_on_the_host", lambda x: x.no_such_method(), "CPU")
LIBRARY.define("writes_unsaid(Tensor x) -> Tensor")
LIBRARY.impl("writes_unsaid", lambda x: torch.empty_like(x), "CUDA")
LIBRARY.impl("writes_unsaid", lambda x: x.add_(1) * 2, "CPU")


LIBRARY.define("quantize(Tensor x) -> (Tensor, Tensor)")
LIBRARY.impl("quantize", lambda x: (torch.empty_like(x, dtype=torch.uint8), x.new_empty(x.numel() // 64)), "CUDA")
RUN_ON_THE_HOST: list[int] = []


def quantized_on_the_host(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Note how much was computed."""
    RUN_ON_THE_HOST.append(x.numel())
    return x.to(torch.uint8), x.flatten()[::64].clone()


LIBRARY.impl("quantize", quantized_on_the_host, "CPU")


@case
def operator_of_a_package_on_large_weights() -> Any:
    """It is not run on the host, where it would take minutes: its result is drawn."""
    for size in (64 * 64, 4 << 20):
        torch.ops.ullage_test.quantize(torch.zeros(size, device="cuda"))[1].mean().item()
    assert 4 << 20 not in RUN_ON_THE_HOST
    return []


@case
def operator_of_the_script() -> Any:
    """One with a CPU kernel is taken to compute there what it does on the card; what it writes is unknown."""
    x = torch.arange(6, device="cuda")
    doubled = int(torch.ops.ullage_test.pure(x).sum())
    both = torch.ops.ullage_test.mutates(x)
    first = int(both.max())
    second = int(x.max())
    given = torch.arange(6, device="cuda")
    torch.ops.ullage_test.writes_unsaid(given).sum().item()
    kept = int(given.sum()) in (0, 15)
    failed = int(torch.ops.ullage_test.fails_on_the_host(torch.arange(6, device="cuda")).sum())
    return [doubled in (0, 30), first, second, kept, failed]


@case
def kernel_of_triton() -> Any:
    """A kernel that is launched writes what nobody sees: zeros that it was given are known no longer."""
    global tl  # where older versions of Triton look for it
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, out, n: tl.constexpr):
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at) + 1)

    x = torch.arange(8, device="cuda", dtype=torch.float32)
    ids = torch.arange(8, device="cuda")
    out = torch.zeros(8, device="cuda", dtype=torch.int64)
    sent = torch.zeros(8, dtype=torch.int64).to("cuda")
    try:
        kernel[(1,)](ids, out, n=8)
        kernel[(1,)](ids, sent, n=8)
        launched = True
    except Exception as error:  # there is no compiler for it
        launched = str(error)[:200]
    del x
    of_host = bool((sent == 0).all()) is not None
    return [launched, bool((out == 0).all()) is not None, int(ids.sum()) in (0, 28), of_host]


@case
def compiled_graph() -> Any:
    """A kernel of Inductor's says what it only reads: that stays known, and what it writes is not."""

    def shifted(given: torch.Tensor) -> torch.Tensor:
        return given * 2 + 1

    sent = torch.tensor([1, 2, 3, 4], device="cuda")
    made = torch.compile(shifted)(sent)
    return [int(sent.sum()) in (0, 10), int(made.max()) is not None]


@case
def errors_of_operators() -> Any:
    """Errors have the same type and text."""
    x = torch.zeros(4, device="cuda")
    return [
        error_of(lambda: x + torch.zeros(3, device="cuda")),
        error_of(lambda: x.reshape(3, 2)),
        error_of(lambda: torch.mm(x, x)),
        error_of(lambda: x[torch.zeros(3, dtype=torch.bool, device="cuda")]),
        error_of(lambda: torch.cat([x, torch.zeros(2, 2, device="cuda")])),
        error_of(lambda: x.add_(torch.zeros(2, 4, device="cuda"))),
        error_of(lambda: torch.nonzero(x, as_tuple=3)),
        error_of(lambda: torch.split(x, [1, 1])),
        error_of(lambda: x + torch.zeros(4)),
        error_of(lambda: x.index_select(0, torch.zeros(2, 2, dtype=torch.int64, device="cuda"))),
        error_of(lambda: torch.bincount(x)),
    ]


@case
def numbers_for_tensors() -> Any:
    """Operators that PyTorch gives a number, wrapped in a tensor, on either side."""
    x = torch.arange(1, 5, device="cuda")
    y = x.float()
    found = (
        *(7 % x, x % 3, 2**x, x**2, 7 // x, x // 2, 1 << x, x << 1, 7 & x, x | 8, 7 - x, 6 / y, torch.fmod(x, 3)),
        *(torch.where(x > 2, x, 0), torch.where(x > 2, 1.5, y), torch.xlogy(2.0, y), torch.xlogy(y, 2.0), x > 2),
        *(torch.isin(3, x), torch.isin(x, 3), torch.lerp(y, y + 1, 0.5), torch.clamp(x, 2), torch.float_power(2, x)),
        *(torch.bucketize(2, x), torch.ldexp(y, x), torch.special.zeta(2.0, y + 1), 3 % torch.arange(1, 4)),
        *(torch.copysign(y, -1.0), torch.heaviside(y, y), torch.bitwise_xor(3, x), x.remainder_(3), y.fill_(x[0])),
    )
    return [[str(each.dtype), list(each.size())] for each in found]


@case
def out_of_memory() -> Any:
    """An operator that runs out of memory says so, and nothing is left behind."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    kind, text = error_of(lambda: torch.zeros(1 << 40, device="cuda"))

    def grow() -> None:
        small = torch.ones(1 << 32, dtype=torch.uint8, device="cuda")
        assert small.to(torch.float64).to(torch.complex128).size()

    other, _ = error_of(grow)
    gc.collect()
    return [kind, text.partition(".")[0], other, torch.cuda.memory_allocated() - before]


@case
def storage_resized() -> Any:
    """A storage that is emptied and filled again, as FSDP does."""
    x = torch.arange(1000, device="cuda")
    storage = x.untyped_storage()
    storage.resize_(0)
    storage.resize_(8000)
    read = int(x.sum())
    x.copy_(torch.arange(1000))
    return [read, int(x.sum()) in (0, 499500)]


@case
def storage_set() -> Any:
    """A tensor that gets another's memory."""
    x, y = torch.arange(4, device="cuda"), torch.arange(4, 8, device="cuda")
    x.set_(y.untyped_storage(), 0, (4,), (1,))
    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    parameter.data = torch.ones(3, device="cuda")
    del y
    return [x.tolist() in ([0] * 4, [4, 5, 6, 7]), parameter.sum().item() in (0.0, 3.0)]


@case
def graph_of_the_card() -> Any:
    """What a graph writes is written again at each replay."""
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        flag = y > 0
    x.fill_(2)
    graph.replay()
    return [y.size(), bool(flag.any()) is not None]


@case
def deep_chain() -> Any:
    """A long chain of operators is worked out on the way."""
    x = torch.zeros(4, dtype=torch.int64, device="cuda")
    for _ in range(3000):
        x = x + 1
    y = torch.zeros(4, device="cuda")
    for _ in range(3000):
        y = torch.nn.functional.relu(y - torch.randn(4, device="cuda"))
    return [int(x[0]) in (0, 3000), y.sum().item() >= 0]


class _Counts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@case
def mode_of_the_script() -> Any:
    """A dispatch mode sees the operators that it would have seen."""
    with _Counts() as mode:
        x = torch.arange(6, device="cuda")
        y = (x * 2 + 1)[x > 2]
        z = y.sum().item()
    return [mode.names, z in (0, 27)]


class _Wrapped(torch.Tensor):
    """A tensor around another."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(each: Any) -> Any:
            return each.inner if isinstance(each, _Wrapped) else each

        result = func(*map(bare, args), **(kwargs or {}))
        return _Wrapped(result) if isinstance(result, torch.Tensor) else result


@case
def subclass_of_tensor() -> Any:
    """A subclass that wraps a tensor: what it does within is seen."""
    x = _Wrapped(torch.arange(4, device="cuda"))
    y = x * 2
    y.add_(1)
    return [type(y).__name__, y.inner.sum().item() in (0, 16), (y > 3).inner.any().item() is not None]


@case
def fake_tensors() -> Any:
    """Tensors without memory, of a tracer."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(4, 4, device="cuda")
        y = (x @ x + 1).relu_()
    return [str(y.device), list(y.size())]


@case
def many_small_tensors() -> Any:
    """The budget on the host is kept: here one of 32 MiB, and more than that of tensors."""
    evaluation = current().evaluation
    whole, evaluation.budget_bytes = evaluation.budget_bytes, 32 << 20
    kept = [torch.zeros(1 << 14).to("cuda") for _ in range(700)]
    last = torch.arange(5).to("cuda")
    answer = [len(kept), int(last.sum()) in (0, 10), evaluation.kept_bytes <= 32 << 20]
    evaluation.budget_bytes = whole
    return answer


@case
def selective_checkpoint() -> Any:
    """Checkpointing that chooses by a dispatch mode."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    x = torch.ones(4, 4, device="cuda", requires_grad=True)

    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    checkpoint(
        lambda given: torch.mm(given, given).relu() * 2, x, use_reentrant=False, context_fn=contexts
    ).sum().backward()
    assert x.grad is not None
    return list(x.grad.size())


def run_cases(mode: str) -> None:
    """Write a line of JSON for each case, and one for what is left."""
    for name, function in CASES.items():
        current().reads.counts.clear()
        try:
            answer = {"answer": function(), "reads": certainties()}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps([mode, name, answer]), flush=True)
    gc.collect()
    contents = current().contents
    contents.get((0, 0))
    last = {"failures": sorted(current().evaluation.failures), "kept_bytes": current().evaluation.kept_bytes}
    print(json.dumps([mode, "", last]))


def main() -> None:
    """Run the cases twice in one process, so that what takes long is imported and compiled once."""
    torch.ones(1, device="cuda").sum().item()
    run_cases("off")
    Values(ValuesChoice(mode="on"), library).start()
    run_cases("on")


if __name__ == "__main__":
    main()
