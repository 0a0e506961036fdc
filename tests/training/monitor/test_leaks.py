"""Every planted leak is found within 50 steps, with its line and what holds it; nothing else is called one."""

import inspect

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import random

    import torch

    from tests.training.monitor import healthy, healthy_too, leaking, leaking_too
    from ullage.training.monitor.monitor import Monitor

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


@pytest.mark.by_day(3)
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


LEAKING_TOO = {
    "many_small": ("kept", 50, "train"),
    "with_late_state": ("kept", 50, "train"),
    "accumulation_and_leak": ("kept", 50, "train"),
    "begun_at_67_lengths": ("kept", 117, "train"),
    "dict_of_logits": ("RESULTS", 50, "train"),
    "class_attribute": ("history", 50, "train"),
    "closure_nonlocal": ("total", 50, "train"),
    "running_average": ("avg", 50, "train"),
    "retained_graphs": ("losses", 50, "train"),
    "lstm_not_detached": ("hidden", 50, "train"),
    "schedulers_kept": ("schedulers", 50, "train"),
    "queue_nobody_reads": ("q", 50, "train"),
    "fifth_step": ("kept", 50, "train"),
    "fifth_step_of_64": ("kept", 50, "train"),
    "buffers_by_name": ("", 50, "train"),
    "hooks_each_step": ("", 50, "train"),
    "grad_hooks_on_parameter": ("", 50, "train"),
    "parameter_list_grows": ("params", 50, "train"),
    "cycles_without_gc": ("", 50, "train"),
    "generator_local": ("gen", 50, "train"),
    "begun_at_100": ("kept", 150, "train"),
    "with_curriculum": ("kept", 50, "train"),
    "cache_by_random_key": ("cache", 50, "train"),
    "defaultdict_of_lists": ("log", 50, "train"),
    "threading_local": ("", 50, "train"),
    "ctx_keeps_its_output": ("", 50, "train"),
    "partials": ("jobs", 50, "train"),
    "tee_unread": ("", 50, "train"),
    "futures_kept": ("futures", 50, "train"),
    "adapter_each_step": ("adapters", 50, "train"),
    "weights_each_step": ("averages", 50, "train"),
    "linked_list": ("head", 50, "train"),
    "error_contexts": ("", 50, "train"),
    "eval_only_few": ("", 50, "eval"),
    "large_blocks": ("kept", 50, "train"),
    "with_empty_cache": ("kept", 50, "train"),
    "tensor_that_grows_in_place": ("grown", 50, "train"),
    "cat_among_lengths": ("store", 50, "train"),
    "leak_with_drops": ("kept", 50, "train"),
    "contextvar_stack": ("", 50, "train"),
    "asyncio_tasks": ("tasks", 50, "train"),
    "optimizer_state_extra": ("", 50, "train"),
    "finalizers": ("", 50, "train"),
}
"""For each further loop that leaks what stands in its holder's path, how many steps it takes, and the phase."""
ALWAYS = 4
"""So many of them run always, the others with ULLAGE_SLOW."""
MORE_SEEDS = 3 if SLOW else 1


@pytest.mark.parametrize("seed", range(1, 1 + MORE_SEEDS))
@pytest.mark.parametrize("name", LEAKING_TOO if SLOW else list(LEAKING_TOO)[:ALWAYS])
@inside
def test_a_leak_of_another_form_is_found_within_50_steps_of_its_beginning(name: str, seed: int) -> str:
    """Amid a warm-up, late, in hooks, threads, queues, caches, contexts: with its line, and with its holder."""
    random.seed(seed)
    holder, steps, phase = LEAKING_TOO[name]
    loop = getattr(leaking_too, name)
    source, first = inspect.getsourcelines(loop)
    (line,) = [first + number for number, text in enumerate(source) if "# leaks" in text]
    searches = SLOW and seed == 1
    with Monitor(holders=searches) as monitor:
        loop(monitor, steps)
    leaks = [finding for finding in monitor.findings if finding.is_leak]
    assert [(leak.line, leak.phase) for leak in leaks] == [(f"monitor/leaking_too.py:{line}", phase)], str(monitor)
    assert leaks[0].bytes_per_step >= 12800
    assert not searches or holder in (leaks[0].holder or "nobody"), str(monitor)
    assert not torch._C._cuda_isHistoryEnabled()
    return str(monitor)


HEALTHY_TOO = {
    "replay_small_deque_of_dicts": 80,
    "bucketed_lengths_ascending_each_epoch": 140,
    "tbptt_35": 120,
    "contrastive_cache_32": 80,
    "cycles_collected_by_python": 100,
    "lru_cache_of_masks": 100,
    "gc_every_30_steps": 400,
    "dataset_cached_lazily_in_first_epoch": 500,
    "kv_cache_bounded_per_sequence": 300,
    "kv_cache_cat_sliding_window": 400,
    "generation_inside_a_step": 300,
    "ema_begun_late_by_deepcopy": 300,
    "new_head_each_stage": 360,
    "validation_every_n_with_metrics": 400,
    "validation_without_phase_keeps_last": 400,
    "best_checkpoint_grows_rarely": 400,
    "last_three_checkpoints": 400,
    "replay_reservoir_preallocated": 500,
    "lr_finder_then_training": 400,
    "rare_long_batches": 600,
    "lognormal_lengths": 600,
    "curriculum_unrolled_rnn": 400,
    "curriculum_unrolled_rnn_outputs": 400,
    "fragmentation_only": 300,
    "empty_cache_every_n": 300,
    "counters_reset_each_epoch": 300,
    "grads_accumulated_over_32": 400,
    "graph_over_16_steps": 400,
    "scalar_metrics_per_epoch": 600,
    "prefetch_thread": 400,
    "rope_cache_grows_to_longest": 600,
    "compiled": 150,
    "eval_set_cached_on_first_eval": 400,
    "ppo_rollouts": 400,
    "gan_with_history_pool": 400,
    "optimizer_swapped_midway": 300,
    "anomaly_and_checkpointing": 250,
    "streams_record": 300,
    "beam_search_lengths": 500,
    "graph_batches_number_of_nodes": 400,
    "number_of_boxes_drifts_up": 400,
    "warm_up_of_workspaces_by_shape": 300,
}
"""Further loops that do not leak, and how many steps they take."""
ALWAYS_HEALTHY = 6


@pytest.mark.parametrize("seed", range(1, 1 + MORE_SEEDS))
@pytest.mark.parametrize("name", HEALTHY_TOO if SLOW else list(HEALTHY_TOO)[:ALWAYS_HEALTHY])
@inside
def test_a_healthy_loop_of_another_form_is_never_said_to_leak(name: str, seed: int) -> str:
    """What is full by step 42, what is cleared again and again, what waits for Python's collector."""
    random.seed(seed)
    said: list[str] = []
    with Monitor(holders=False, log=said.append) as monitor:
        getattr(healthy_too, name)(monitor, HEALTHY_TOO[name])
    assert not [line for line in said if line.startswith("leak")], str(monitor)
    return str(monitor)
