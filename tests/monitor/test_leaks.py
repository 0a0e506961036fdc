"""Every planted leak is found within 50 steps, with its line and what holds it; nothing else is called one."""

import inspect

import pytest

from tests.guard.inside import INSIDE, SLOW, inside

if INSIDE:
    import random

    import torch

    from tests.monitor import healthy, leaking
    from ullage.monitor.monitor import Monitor

STEPS = 50
SEEDS = 20 if SLOW else 1
HOLDERS = {
    "losses_with_their_graph": "losses",
    "a_sum_of_losses": "total",
    "predictions": "kept",
    "one_row_of_each": "kept",
    "a_forward_hook_that_appends": "seen",
    "a_gradient_hook_that_appends": "seen",
    "a_gradient_hook_that_copies": "seen",
    "a_cache_by_step": "CACHE",
    "hidden_state_without_detach": "hidden",
    "states_joined": "memory",
    "exceptions_that_are_kept": "errors",
    "closures_in_a_list": "later",
    "optimizers_that_are_kept": "kept",
    "a_deque_without_end": "recent",
    "every_fourth_step": "kept",
    "among_random_lengths": "kept",
    "predictions_of_random_lengths": "kept",
    "now_and_then": "kept",
    "an_object_with_a_cycle": "kept",
    "in_eval_alone": "kept",
    "in_train_with_evals": "kept",
    "at_every_save": "saved",
}
"""For each loop that leaks the variable that holds what it keeps."""
SEARCHED = ("predictions",)
"""Where the holder is asked for too: a search takes seconds in a process that has imported all of torch."""
PHASES = {"in_eval_alone": "eval", "at_every_save": "save"}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", HOLDERS)
@inside
def test_a_leak_is_found_within_50_steps_with_its_line_and_its_holder(name: str, seed: int) -> str:
    """One finding, of at least 16 KiB a step, at the marked line, in the phase that leaks."""
    random.seed(seed)
    loop = getattr(leaking, name)
    source, first = inspect.getsourcelines(loop)
    (line,) = [first + number for number, text in enumerate(source) if "# leaks" in text]
    searches = SLOW or name in SEARCHED
    with Monitor(holders=searches) as monitor:
        loop(monitor, STEPS)
    leaks = [finding for finding in monitor.findings if finding.is_leak]
    assert [leak.line for leak in leaks] == [f"monitor/leaking.py:{line}"], str(monitor)
    assert leaks[0].phase == PHASES.get(name, "train")
    assert leaks[0].bytes_per_step >= 16384
    assert (HOLDERS[name] in (leaks[0].holder or "")) == searches, str(monitor)
    assert not torch._C._cuda_isHistoryEnabled()
    return str(monitor)


HEALTHY = {
    "plain": 120,
    "random_lengths": 400,
    "eval_phases": 200,
    "predictions_of_an_eval": 200,
    "evals_without_a_phase": 200,
    "optimizer_state_late": 120,
    "gradient_accumulation": 200,
    "average_of_weights_late": 160,
    "floats_in_a_list": 120,
    "losses_in_a_list_for_an_epoch": 200,
    "two_optimizers": 150,
    "mixed_resolutions": 200,
    "saving": 150,
    "a_search_for_the_learning_rate": 150,
    "a_buffer_that_fills_soon": 200,
    "a_deque_with_an_end": 200,
    "hidden_state_with_detach": 150,
    "masks_by_length": 300,
    "growing_curriculum": 200,
    "mixed_precision": 120,
    "detections": 300,
    "weights_that_thaw": 150,
    "an_exception_each_step": 120,
    "lengths_that_grow": 200,
}
"""Loops that do not leak, and how many steps they take."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", HEALTHY)
@inside
def test_a_healthy_loop_is_never_said_to_leak(name: str, seed: int) -> str:
    """No line says so, at any time."""
    random.seed(seed)
    said: list[str] = []
    with Monitor(holders=False, log=said.append) as monitor:
        getattr(healthy, name)(monitor, HEALTHY[name])
    assert monitor.steps >= HEALTHY[name]
    assert not [line for line in said if line.startswith("leak")], str(monitor)
    assert not torch._C._cuda_isHistoryEnabled()
    return str(monitor)
