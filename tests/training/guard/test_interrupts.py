"""Ctrl-C at chosen lines of a guarded step: it is as if it had not begun, or whole; and nothing is left over."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import signal
    import sys
    from collections.abc import Callable
    from types import FrameType

    import torch

    import ullage
    from tests.training.guard import worlds
    from tests.training.guard.faults import TEXT
    from tests.training.guard.world import World, differences, guard_of, left_of

TRIES = 200 if SLOW else 12
"""The tries of each training with each number of errors."""
STEP = 1
"""The step, counted from 0, that is interrupted."""


class Tracing:
    """Counts the lines that the guard, the optimizer and the loss function come to, and sends SIGINT at one."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: "FrameType", event: str, _: Any) -> "Callable[..., Any] | None":
        name = frame.f_code.co_filename
        if not any(
            part in name
            for part in ("/ullage/training/guard/", "/torch/optim/", "/tests/training/guard/", "/clip_grad.py")
        ):
            return None
        if event == "line":
            if self.count == self.at:
                self.count += 1
                signal.raise_signal(signal.SIGINT)
            self.count += 1
        return self


def _build(name: str, faults: int) -> "tuple[World, dict[str, int]]":
    """A training that runs out of memory so many times in the step that is interrupted."""
    world: World = getattr(worlds, name)()
    world.options["batchnorm"] = "freeze"
    held = {"step": 0, "faults": 0}
    inner, begin = world.loss_of, world.begin

    def begun(number: int) -> None:
        held["step"], held["faults"] = number, faults if number == STEP else 0
        begin(number)

    def loss_of(batch: Any) -> Any:
        loss = inner(batch)
        if held["faults"] and torch.is_grad_enabled():
            held["faults"] -= 1
            raise torch.OutOfMemoryError(TEXT)
        return loss

    world.loss_of, world.begin = loss_of, begun
    return world, held


def _train(world: "World", guard: "ullage.Guard", steps: "range", tracing: "Tracing | None" = None) -> None:
    for number in steps:
        world.begin(number)
        sys.settrace(tracing if number == STEP else None)
        try:
            loss = guard.step(world.batches[number], world.loss_of, update=world.updates(number))
        finally:
            sys.settrace(None)
        world.losses.append(loss)


def _surroundings(world: "World") -> dict[str, Any]:
    """What a step must leave as it was, beside values."""
    of_lists = [name for name in dir(torch) if name.startswith(("_foreach_", "_fused_", "_amp_"))]
    return {
        "functions": [getattr(torch, name) for name in of_lists],
        "modules": [
            (module.training, "forward" in vars(module), *(len(getattr(module, name)) for name in _HOOKS))
            for module in world.model.modules()
        ],
        "parameters": [len(one._post_accumulate_grad_hooks or ()) for one in world.model.parameters()],
        "optimizers": [len(one._optimizer_step_pre_hooks) for one in world.optimizers],
        "modes": len(torch.overrides._get_current_function_mode_stack()),
        "gradients": torch.is_grad_enabled(),
        "handler": signal.getsignal(signal.SIGINT),
    }


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


@pytest.mark.parametrize("name", ["mlp", "convolution", "accumulation", "bfloat16", "two_optimizers"])
@pytest.mark.parametrize("faults", [0, 1, 3])
@inside
def test_ctrl_c_leaves_a_step_undone_or_whole(name: str, faults: int) -> str:
    """Values, torch's functions, hooks, modes and handlers; and training goes on as if nothing had been pressed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for _ in range(2):  # the first fills caches, which takes lines of its own
        world, _ = _build(name, faults)
        counting = Tracing()
        _train(world, guard_of(world), range(len(world.batches)), counting)
    expected = left_of(world)
    lines = range(0, counting.count, -(-counting.count // TRIES))
    undone = whole = 0
    for line in lines:
        world, held = _build(name, faults)
        guard = guard_of(world)
        _train(world, guard, range(STEP))
        before, around = left_of(world), _surroundings(world)
        with pytest.raises(KeyboardInterrupt):
            _train(world, guard, range(STEP, STEP + 1), Tracing(line))
        assert _surroundings(world) == around, line
        is_undone = not differences(_without_gradients(before), _without_gradients(left_of(world)))
        undone, whole = undone + is_undone, whole + (not is_undone)
        if is_undone and not world.updates(STEP - 1):
            continue  # an accumulation that an error has ended begins again
        if not is_undone:
            world.losses.append(expected[f"losses {STEP}"])
        held["faults"] = 0
        _train(world, guard, range(STEP + (not is_undone), len(world.batches)))
        if faults < 3:  # in parts the numbers are rounded in another order
            assert differences(expected, left_of(world)) == [], (line, is_undone)
    assert undone > 0
    assert whole > 0 or faults == 3  # most lines are those of trials then
    return f"{len(lines)} of {counting.count} lines: {undone} undone, {whole} whole"


def _without_gradients(left: dict[str, Any]) -> dict[str, Any]:
    """What is left but gradients, which a step drops at its start, and lists of losses."""
    return {name: value for name, value in left.items() if not name.startswith(("gradient", "losses"))}


@inside
def test_a_handler_that_is_no_function_is_left_alone() -> None:
    """A signal that is ignored stays ignored, and one that is pressed twice comes through at once."""
    world: World = worlds.mlp()
    guard = guard_of(world)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard.step(world.batches[0], world.loss_of)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reached: list[int] = []

    def before_step() -> None:
        for number in range(3):
            reached.append(number)
            signal.raise_signal(signal.SIGINT)

    guard = ullage.Guard(world.model, world.optimizers, before_step=before_step, log=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        guard.step(world.batches[0], world.loss_of)
    assert reached == [0, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
