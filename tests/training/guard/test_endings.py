"""What a guard raises and what it lets through; and that nothing has changed where it gives up."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import torch
    from torch import nn
    from torch.nn import functional as F

    import ullage
    from tests.training.guard import worlds
    from tests.training.guard.faults import TEXT, Faults
    from tests.training.guard.world import World, differences, guard_of, left_of


def _guard(**options: Any) -> Any:
    model = nn.Linear(3, 1)
    return ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None, **options)


@pytest.mark.parametrize("kind", ["ValueError", "RuntimeError", "KeyboardInterrupt", "SystemExit", "MemoryError"])
@pytest.mark.parametrize("when", ["forward", "backward", "before_step", "optimizer"])
@inside
def test_another_error_comes_through_as_it_is(kind: str, when: str) -> None:
    """The same object, no note, raised once; MemoryError too where a card is what the model is on."""
    error = {"ValueError": ValueError, "RuntimeError": RuntimeError, "MemoryError": MemoryError}.get(kind)
    error = (error or {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[kind])("shape mismatch")
    device = "cuda" if kind == "MemoryError" else "cpu"
    model = nn.Linear(3, 1, device=device)
    calls = []

    def fail(*_: Any) -> Any:
        calls.append(1)
        raise error

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"before_step": fail} if when == "before_step" else {}
    if when == "optimizer":
        optimizer.register_step_pre_hook(fail)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        if when == "forward":
            fail()
        loss = model(batch).sum()
        if when == "backward":
            loss.register_hook(fail)
        return loss

    guard = ullage.Guard(model, optimizer, log=lambda _: None, **options)
    with pytest.raises(type(error)) as caught:
        guard.step(torch.randn(4, 3, device=device), loss_of)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert calls == [1]
    assert not guard.events
    assert all("forward" not in vars(module) for module in model.modules())


@inside
def test_out_of_memory_of_the_host_counts_where_the_model_is_there() -> None:
    """The CPU allocator's error, a MemoryError and numpy's are memory that ran out for a model on the CPU."""
    for error in (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
        ),
        MemoryError(),
        MemoryError("Unable to allocate 14.9 GiB for an array with shape (2000, 1000000) and data type float64"),
    ):
        model, errors = nn.Linear(3, 1), [error]

        def loss_of(batch: torch.Tensor, model: nn.Module = model, errors: list[Exception] = errors) -> torch.Tensor:
            if errors:
                raise errors.pop()
            return model(batch).sum()

        guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None)
        guard.step(torch.randn(4, 3), loss_of)
        assert len(guard.events) == 1


@pytest.mark.parametrize("name", ["mlp", "convolution", "lstm", "tied", "bfloat16", "two_optimizers"])
@inside
def test_what_is_given_up_is_as_it_was(name: str) -> None:
    """When memory never suffices, also after parts have been taken, all is as before, and a report says why."""
    for survivors in (0, 1, 2):
        world: World = getattr(worlds, name)()
        world.options |= {"batchnorm": "freeze", "splittable": True}
        guard = guard_of(world)
        world.losses.append(guard.step(world.batches[0], world.loss_of))
        for optimizer in world.optimizers:
            optimizer.zero_grad()
        guard._is_updated = False
        before = left_of(world)
        taken: list[int] = []

        def loss_of(batch: Any, world: World = world, taken: list[int] = taken, survivors: int = survivors) -> Any:
            loss = world.loss_of(batch)
            items = len(batch["x"]) if isinstance(batch, dict) else len(batch[0])
            if items > 1 or len(taken) >= survivors:
                raise torch.OutOfMemoryError(TEXT)
            taken.append(items)
            return loss

        with pytest.raises(torch.OutOfMemoryError) as caught:
            guard.step(world.batches[1], loss_of)
        assert len(taken) == survivors
        assert differences(before, left_of(world)) == [], survivors
        assert "NOT ENOUGH GPU MEMORY" in caught.value.__notes__[-1]
        assert "Try first (an estimate)" in caught.value.__notes__[-1]
        assert guard.events[-1].action == "gave up; everything is as before the step"
        world.losses.append(guard.step(world.batches[1], world.loss_of))  # and it goes on


@inside
def test_gradients_that_cannot_be_put_back_are_said_to_be_gone() -> None:
    """In an accumulation an earlier gradient that has a share of the failed batch is None, and a note says so."""
    model = nn.Linear(3, 1)
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), splittable=False, log=lambda _: None)
    batch = torch.randn(4, 3)
    guard.step(batch, lambda b: model(b).sum(), update=False)
    kept = model.weight.grad.clone()

    def early(batch: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(TEXT)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        guard.step(batch, early, update=False)
    assert torch.equal(model.weight.grad, kept)
    assert not any("update=False" in note for note in caught.value.__notes__)

    def late(batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).sum()
        model.bias.register_post_accumulate_grad_hook(fail)
        return loss

    def fail(parameter: torch.Tensor) -> None:
        raise torch.OutOfMemoryError(TEXT)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        guard.step(batch, late, update=False)
    assert model.bias.grad is None
    assert "Some gradients that earlier calls with update=False had accumulated" in caught.value.__notes__[0]


WRONG: dict[str, tuple[str, str]] = {
    "model": ("ullage.Guard(3, sgd)", "model is of type int; expected a torch Module or a list of them"),
    "optimizer": ("ullage.Guard(model, None)", "optimizer is of type NoneType; expected a torch Optimizer"),
    "no model": ("ullage.Guard([], sgd)", "model is an empty list; expected a torch Module or a list of them"),
    "no optimizer": ("ullage.Guard(model, [])", "optimizer is an empty list"),
    "reduction": (
        "ullage.Guard(model, sgd, reduction='none')",
        "reduction='none' is not allowed; expected 'mean' or 'sum'",
    ),
    "batchnorm": (
        "ullage.Guard(model, sgd, batchnorm='off')",
        "batchnorm='off' is not allowed; expected 'freeze', 'allow' or None",
    ),
    "clip": (
        "ullage.Guard(model, sgd, clip_grad_norm=0)",
        "clip_grad_norm=0 is not allowed; expected a maximum norm above 0",
    ),
    "nan": (
        "ullage.Guard(model, sgd, clip_grad_norm=float('nan'))",
        "clip_grad_norm=nan is not allowed; expected a maximum norm above 0",
    ),
    "LBFGS": (
        "ullage.Guard(model, torch.optim.LBFGS(model.parameters()))",
        "optimizer is an LBFGS, which calls forward and backward itself",
    ),
    "checkpoint": (
        "ullage.Guard(nn.Sequential(model), sgd, checkpoint=['layers.*'])",
        "checkpoint='layers.*' matches no module of the model; expected names as in named_modules(), such as "
        "'layers.*'; the top-level modules are: 0",
    ),
    "no loss": (
        "_guard().step(x, lambda b: None)",
        "the loss function returned an object of type NoneType; expected a tensor with one",
    ),
    "many": ("_guard().step(x, lambda b: model(b))", "the loss function returned a tensor of shape (4, 1); expected"),
    "no grad": (
        "_guard().step(x, lambda b: model(b).sum().detach())",
        "the loss function returned a tensor of shape () that requires no gradient; expected",
    ),
    "three": (
        "_guard().step(x, lambda b: (1, 2, 3))",
        "the loss function returned an object of type tuple; expected a tensor with one",
    ),
    "number": (
        "_guard().step(x, lambda b: (0.5, 'more'))",
        "the loss function returned an object of type float; expected a tensor",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@inside
def test_what_cannot_be_is_refused(name: str) -> None:
    """Every refusal says what it got and what it expected."""
    code, text = WRONG[name]
    model = nn.Linear(3, 1)
    there = {"model": model, "sgd": torch.optim.SGD(model.parameters(), lr=0.1), "x": torch.randn(4, 3)}
    with pytest.raises(ullage.UsageError) as caught:
        eval(code, globals() | there)
    assert str(caught.value).startswith(text)


@inside
def test_an_optimizer_that_does_not_fit_is_refused_whole() -> None:
    """Where its state never fits no parameter has changed, there is no state, and update() may be called again."""
    world: World = worlds.mlp()
    guard = guard_of(world)
    guard.step(world.batches[0], world.loss_of, update=False)
    before = left_of(world)
    versions = [parameter._version for parameter in world.model.parameters()]
    with Faults(range(1, 10_000)), pytest.raises(torch.OutOfMemoryError) as caught:
        guard.update()
    assert differences(before, left_of(world)) == []
    assert versions == [parameter._version for parameter in world.model.parameters()]
    assert not world.optimizers[0].state
    assert world.optimizers[0].param_groups[0]["foreach"] is True
    assert "NOT ENOUGH GPU MEMORY" in caught.value.__notes__[-1]
    guard.update()
    expected: World = worlds.mlp()
    F.mse_loss(expected.model(expected.batches[0][0]), expected.batches[0][1]).backward()
    expected.optimizers[0].step()
    assert torch.equal(expected.model[0].weight, world.model[0].weight)
