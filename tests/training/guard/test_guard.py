"""Guard on the emulated card: PyTorch's own allocator runs out, and what the guard does about it is seen in bytes."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import gc
    from collections import Counter

    import torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

    import ullage
    from ullage.training.guard.retries.plan import BatchPlan
    from ullage.training.guard.splitting.batch import form_of

    class Writes(TorchDispatchMode):
        """Counts how often each tensor has been written by an operation that came to its end."""

        def __init__(self) -> None:
            super().__init__()
            self.count: Counter[int] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self.count.update(map(id, value if isinstance(value, list | tuple) else [value]))
            return result


MIB = 1 << 20


def _limit(mib: float) -> None:
    """Leave PyTorch so much of the card."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((mib * MIB + 1) / total)


def _bytes(mib: float) -> "torch.Tensor":
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def _net(width: int = 256, depth: int = 4) -> "nn.Module":
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 1)).cuda()


PLANS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "split": ({"parts": 2}, {}, "split into 2 parts from now on"),
    "checkpoint": (
        {"checkpoint": True},
        {"splittable": False, "checkpoint": ["0", "1", "2", "3"]},
        "retried with activation checkpointing",
    ),
    "offload": ({"offload": True}, {"splittable": False}, "retried with saved tensors in host memory"),
}


def _taken(options: dict[str, Any], plan: dict[str, Any], mib: float) -> tuple[list[str], list[int], float]:
    """Take three steps that begin with a plan, within so much memory.

    Returns what the guard said; the memory after the last step and its peak in bytes; the most reserved in MiB.
    """
    gc.collect()
    torch.cuda.empty_cache()
    _limit(mib)
    model = _net()
    guard = ullage.Guard(model, torch.optim.AdamW(model.parameters()), log=lambda _: None, **options)
    batches = [torch.randn(16384, 256, device="cuda") for _ in range(3)]
    guard._ladder.plans.succeeded(form_of(batches[0]).shape, BatchPlan(**plan))
    reserved = 0.0
    for batch in batches:
        torch.cuda.reset_peak_memory_stats()  # how it got there is another matter than the last step
        guard.step(batch, lambda batch: model(batch).square().mean())
        reserved = max(reserved, torch.cuda.max_memory_reserved() / MIB)
    stats = torch.cuda.memory_stats()
    figures = [
        stats[name] for name in ("allocated_bytes.all.current", "active.all.current", "allocated_bytes.all.peak")
    ]
    return [f"{event.step} {event.action}" for event in guard.events], figures, reserved


@pytest.mark.parametrize("name", PLANS)
@inside
def test_what_does_not_fit_is_taken_in_a_way_that_does(name: str) -> str:
    """Later steps have no error, and their memory is that of a run that took this way from the beginning."""
    plan, options, action = PLANS[name]
    _taken(options, {}, 14000)  # the libraries' own workspaces are made
    _, whole, _ = _taken(options, {}, 14000)
    said, figures, reserved = _taken(options, plan, 14000)
    assert said == []
    assert figures[2] < whole[2]
    assert _taken(options, plan, reserved)[:2] == ([], figures)
    said, again, _ = _taken(options, {}, reserved)
    assert (said[0], said[-1]) == ("1 undone, and retried unchanged", f"1 {action}"), said
    assert set(said[1:-1]) <= {"1 retried after empty_cache"}, said
    assert again == figures, (again, figures)
    return f"{whole[2] / MIB:.0f} MiB became {figures[2] / MIB:.0f} MiB"


@inside
def test_pieces_are_joined_by_giving_the_cache_back() -> None:
    """Where what others have cached is cut into pieces too small, a second attempt fails too; the third does not."""
    model = nn.Linear(4, 1).cuda()
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        kept = [_bytes(size) for size in (22, 22, 22, 36)]
        return model(batch).sum() + 0 * len(kept)

    _limit(132)
    cached = [_bytes(40) for _ in range(3)]
    del cached
    guard.step(torch.randn(8, 4, device="cuda"), loss_of)
    assert [event.action for event in guard.events] == [
        "undone, and retried unchanged",
        "retried after empty_cache",
    ]
    guard.step(torch.randn(8, 4, device="cuda"), loss_of)
    assert len(guard.events) == 2


def _wide(count: int = 8, width: int = 2048) -> "tuple[nn.Module, torch.Tensor]":
    """Parameters of 16 MiB each, and a batch."""
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
    return model, torch.randn(2, width, device="cuda")


@inside
def test_state_that_does_not_fit_is_refused_whole() -> None:
    """128 MiB of parameters, as much of gradients, and no room for Adam's 256: nothing is written and nothing kept."""
    model, batch = _wide()
    optimizer = torch.optim.Adam(model.parameters())
    guard = ullage.Guard(model, optimizer, log=lambda _: None)
    guard.step(batch, lambda batch: model(batch).sum(), update=False)
    gc.collect()
    torch.cuda.empty_cache()
    versions, held = [parameter._version for parameter in model.parameters()], torch.cuda.memory_allocated()
    _limit(480)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        guard.update()
    assert [parameter._version for parameter in model.parameters()] == versions
    assert not optimizer.state
    assert torch.cuda.memory_allocated() == held
    assert "A limit refused the request" in caught.value.__notes__[-1]
    _limit(1000)
    guard.update()
    assert len(optimizer.state) == 8


@inside
def test_temporaries_that_do_not_fit_go_one_by_one() -> None:
    """Adam's state fits, but not the square roots of all parameters at once: the step goes parameter by parameter."""
    model, batch = _wide()
    optimizer = torch.optim.Adam(model.parameters())
    guard = ullage.Guard(model, optimizer, log=lambda _: None)
    _limit(128 * 4 + 100)
    for _ in range(3):
        guard.step(batch, lambda batch: model(batch).sum())
    assert [(event.step, event.action) for event in guard.events] == [(1, "dry run retried")] * 2
    assert optimizer.param_groups[0]["foreach"] is False
    assert all(int(optimizer.state[parameter]["exp_avg"].numel()) == 2048**2 for parameter in model.parameters())


@pytest.mark.parametrize("name", ["Adam", "SGD", "NAdam", "Adadelta", *(["AdamW", "RMSprop"] if SLOW else [])])
@pytest.mark.parametrize("foreach", [True, False])
@inside
def test_a_later_step_that_runs_out_goes_on(name: str, foreach: bool) -> None:
    """With a card filled between two steps every parameter is written exactly as often as in any other step."""
    model, batch = _wide(3, 1664)  # nearly 11 MiB each: PyTorch asks the driver for each by itself
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, foreach=foreach, weight_decay=0.1, **options)
    guard = ullage.Guard(model, optimizer, log=lambda _: None)
    written = []
    for room in (None, None, 25, 12, 1):
        guard.step(batch, lambda batch: model(batch).sum(), update=False)
        gc.collect()
        torch.cuda.empty_cache()
        if room is not None:
            _limit(torch.cuda.memory_reserved() / MIB + room)
        state = [value for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
        with Writes() as writes:
            guard.update()
        _limit(14000)
        written.append([writes.count[id(tensor)] for tensor in (*model.parameters(), *state)])
    assert min(written[1]) > 0
    assert written[2] == written[3] == written[4] == written[1]
    stages = {event.stage for event in guard.events}
    assert stages <= {"the optimizer's step"}
    assert guard.events or (name, foreach) == ("SGD", False)


@inside
def test_cudnn_benchmark_has_the_cache_given_back_once() -> None:
    """After the third step, when the algorithms have been tried, and never again."""
    torch.backends.cudnn.benchmark = True
    model = nn.Linear(4, 1).cuda()
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    freed = []
    for _ in range(8):
        guard.step(torch.randn(8, 4, device="cuda"), lambda batch: model(batch).sum())
        freed.append(torch.cuda.memory_stats()["segment.large_pool.freed"])
        _bytes(30)
    before, after = freed[0], freed[-1]
    assert freed == [before] * 2 + [after] * 6
    assert before < after
