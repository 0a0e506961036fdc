"""What the user changes between steps is recorded before the next step, and what a failed step changes is put back.

The guard keeps its record of the model from step to step. Each case changes something before the third step, and the
loss changes it in every step.
"""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import gc
    import weakref

    import torch
    from torch import nn

    import ullage
    from tests.training.guard.idioms.idiom import inputs, net, world
    from tests.training.guard.idioms.outcome import disturbed, undisturbed
    from tests.training.guard.world import World


class _Moving:
    """A function with state: it returns a mean that moves with each call."""

    def __init__(self, rate: float) -> None:
        self.mean, self.rate = torch.zeros(()), rate

    def __call__(self, out: Any) -> Any:
        self.mean.mul_(1 - self.rate).add_(out.detach().mean() + self.rate)
        return out * (1 + self.mean)

    def hook(self, module: Any, args: Any, out: Any) -> Any:
        return self(out)


def _passed(out: Any) -> Any:
    return out


STEP = _passed
"""A global variable that is bound to a function, and later to an object with state."""


def _set_step(value: Any) -> None:
    global STEP  # the case is about a global variable
    STEP = value


def _case(name: str) -> "World":
    _set_step(_passed)
    model: Any = net(middle=[nn.Identity()])
    model.kept, model.lists, model.functions = None, [], {"step": _passed}

    def loss_of(x: Any) -> Any:
        out = STEP(model(x))
        for one in (loss_of.__dict__.get("moving"), model.kept, *model.lists):
            out = one(out) if one is not None else out
        return model.functions["step"](out).pow(2).mean()

    changes = {
        "attribute of the loss function": lambda: setattr(loss_of, "moving", _Moving(0.1)),
        "attribute of the model": lambda: setattr(model, "kept", _Moving(0.2)),
        "element of a list": lambda: model.lists.append(_Moving(0.3)),
        "value of a dict": lambda: model.functions.update(step=_Moving(0.4)),
        "global variable": lambda: _set_step(_Moving(0.5)),
        "a module is replaced": lambda: model.__setitem__(1, _Counting()),
        "a hook": lambda: model[0].register_forward_hook(_Moving(0.6).hook),
        "a buffer": lambda: model.register_buffer("more", torch.ones(3)),
    }
    made = world(model, inputs(), loss_of)
    made.begin = lambda number: changes[name]() if number == 1 else None
    return made


CASES = (
    *("attribute of the loss function", "attribute of the model", "element of a list", "value of a dict"),
    *("global variable", "a module is replaced", "a hook", "a buffer"),
)


class _Counting(nn.Module if INSIDE else object):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.own = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.own += 1
        return x * (1 + self.calls / 7 + self.own / 9)


@pytest.mark.parametrize("name", CASES)
@inside
def test_a_change_between_steps_is_part_of_the_record(name: str) -> str:
    """One error at operations all over the training leaves the same bits."""
    build = lambda: _case(name)  # noqa: E731
    outcome, expected, operations = undisturbed(build)
    assert not outcome, outcome
    for first in range(3, operations, max(operations // 12, 1)):
        found = disturbed(build, expected, {first})
        assert found == "equal", (first, found)
    return f"{operations} operations"


def _guarded_step(guard: Any, model: Any) -> list[Any]:
    """Take a step; return weak references to its batch, and to what its loss function holds."""
    batch, factor = torch.randn(4, 6), torch.ones(3)
    guard.step(batch, lambda x: model(x).pow(2).mean() * factor.mean())
    return list(map(weakref.ref, (batch, factor)))


@inside
def test_what_the_user_drops_between_steps_is_freed() -> None:
    """A batch, what a closure holds, an attribute of the model, and the model itself."""
    model: Any = net()
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gone = []
    for _ in range(3):
        model.cache = torch.ones(5)
        gone += _guarded_step(guard, model)
        gone.append(weakref.ref(model.cache))
        model.cache = None
        gc.collect()
        assert [one for one in gone if one() is not None] == []
    gone.append(weakref.ref(model))
    del model, guard
    gc.collect()
    assert gone[-1]() is None


@inside
def test_a_rehearsal_with_a_parameter_of_one_element() -> None:
    """The trial of the optimizer's step does not count as a write of forward."""
    for build in (torch.optim.SGD, torch.optim.AdamW):
        model = nn.Linear(3, 1)
        guard = ullage.Guard(model, build(model.parameters(), lr=0.1), log=lambda _: None)
        before = model.bias.detach().clone()
        guard.rehearse([torch.randn(4, 3)], lambda x, model=model: model(x).pow(2).mean())
        assert torch.equal(model.bias, before)
