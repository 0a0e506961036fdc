"""More loops that do not leak: what they keep is bounded, cleared, or waits for Python's collector."""

import copy
import functools
import gc
import queue
import random
import threading
from collections import defaultdict, deque

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.training.monitor.loops import KEPT_FLOATS, Training
from ullage.training.monitor.monitor import Monitor


def replay_small_deque_of_dicts(monitor: Monitor, steps: int) -> None:
    training = Training()
    replay = deque(maxlen=30)
    for _ in range(steps):
        replay.append(
            {
                "s": torch.randn(8192, device="cuda"),
                "a": torch.randn(16, device="cuda"),
                "r": torch.zeros((), device="cuda"),
            }
        )
        training.step()
        monitor.step()


def bucketed_lengths_ascending_each_epoch(monitor: Monitor, steps: int) -> None:
    training = Training()
    while monitor.steps < steps:
        for k in range(60):
            b = training.batch(64 + 97 * k)
            out = training.model(b)
            out.mean().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            monitor.step()


def tbptt_35(monitor: Monitor, steps: int) -> None:
    cell = nn.GRUCell(64, 64).cuda()
    h = torch.zeros(64, 64, device="cuda")
    for n in range(steps):
        h = cell(torch.randn(64, 64, device="cuda"), h)
        if n % 35 == 34:
            h.mean().backward()
            h = h.detach()
        monitor.step()


def contrastive_cache_32(monitor: Monitor, steps: int) -> None:
    """GradCache: features are collected for 32 steps, then cleared: 64 KiB a step"""
    training = Training(64)
    feats = []
    for _n in range(steps):
        with torch.no_grad():
            feats.append(training.model(training.batch(1024)))
        if len(feats) == 32:
            torch.cat(feats).mean()
            feats = []
            training.step()
        monitor.step()


def cycles_collected_by_python(monitor: Monitor, steps: int) -> None:
    training = Training()

    class Node:
        pass

    for _n in range(steps):
        training.step()
        a = Node()
        a.me = a
        a.t = torch.zeros(KEPT_FLOATS, device="cuda")
        del a
        monitor.step()


def gc_every_30_steps(monitor: Monitor, steps: int) -> None:
    gc.disable()
    training = Training()

    class Node:
        pass

    for n in range(steps):
        training.step()
        a = Node()
        a.me = a
        a.t = torch.zeros(KEPT_FLOATS, device="cuda")
        del a
        if n % 30 == 29:
            gc.collect()
        monitor.step()


def lru_cache_of_masks(monitor: Monitor, steps: int) -> None:
    @functools.lru_cache(maxsize=32)
    def mask(n):
        return torch.ones(n, n, device="cuda").tril()

    training = Training()
    for _n in range(steps):
        mask(random.randint(1, 200))
        training.step()
        monitor.step()


def dataset_cached_lazily_in_first_epoch(monitor: Monitor, steps: int) -> None:
    """50 items cached during the first epoch of 38 steps"""
    training = Training()
    cache = {}
    for n in range(steps):
        k = n % 38
        if k not in cache:
            cache[k] = torch.zeros(KEPT_FLOATS, device="cuda")
        training.step()
        monitor.step()


def kv_cache_bounded_per_sequence(monitor: Monitor, steps: int) -> None:
    while monitor.steps < steps:
        cache = []
        for _ in range(random.randint(8, 38)):
            cache.append(torch.randn(KEPT_FLOATS, device="cuda"))
            monitor.step()


def kv_cache_cat_sliding_window(monitor: Monitor, steps: int) -> None:
    k = torch.zeros(1, 0, 512, device="cuda")
    for _ in range(steps):
        k = torch.cat([k, torch.randn(1, 16, 512, device="cuda")], 1)[:, -400:]
        k = k.clone()
        monitor.step()


def generation_inside_a_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        with torch.no_grad():
            k = torch.zeros(1, 0, 256, device="cuda")
            for _ in range(random.randint(1, 20)):
                k = torch.cat([k, torch.randn(1, 32, 256, device="cuda")], 1)
        training.step()
        monitor.step()


def ema_begun_late_by_deepcopy(monitor: Monitor, steps: int) -> None:
    training, ema = Training(256), None
    for n in range(steps):
        training.step()
        if n == 37:
            ema = copy.deepcopy(training.model)
        if ema is not None:
            with torch.no_grad():
                for a, b in zip(ema.parameters(), training.model.parameters(), strict=False):
                    a.lerp_(b, 0.01)
        monitor.step()


def new_head_each_stage(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    heads = []
    for n in range(steps):
        if n % 60 == 59 and len(heads) < 4:
            h = nn.Linear(16, 4096).cuda()
            heads.append(h)
            training.optimizer.add_param_group({"params": h.parameters()})
        out = training.model(training.batch())
        loss = out.mean() + sum(h(out).mean() for h in heads)
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def validation_every_n_with_metrics(monitor: Monitor, steps: int) -> None:
    training = Training()
    for n in range(steps):
        training.step(random.randint(8, 256))
        monitor.step()
        if n % 37 == 36:
            with monitor.phase("eval"), torch.no_grad():
                preds = []
                for _ in range(random.randint(5, 30)):
                    preds.append(training.model(training.batch(512)))
                    monitor.step()
                torch.cat(preds).argmax(1)


def validation_without_phase_keeps_last(monitor: Monitor, steps: int) -> None:
    training = Training()
    _last = None
    for n in range(steps):
        training.step(random.randint(8, 256))
        if n % 23 == 22:
            with torch.no_grad():
                _last = torch.cat([training.model(training.batch(random.randint(64, 2048))) for _ in range(10)])
        monitor.step()


def best_checkpoint_grows_rarely(monitor: Monitor, steps: int) -> None:
    training = Training(256)
    _best = None
    best_score = -1
    for n in range(steps):
        training.step()
        monitor.step()
        if n % 10 == 9 and random.random() > best_score:
            best_score = (best_score + 1) / 2
            _best = copy.deepcopy(training.model.state_dict())


def last_three_checkpoints(monitor: Monitor, steps: int) -> None:
    training = Training(256)
    kept = deque(maxlen=3)
    for n in range(steps):
        training.step()
        monitor.step()
        if n % 12 == 11:
            with monitor.phase("save"):
                kept.append(copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict())))


def replay_reservoir_preallocated(monitor: Monitor, steps: int) -> None:
    training = Training()
    store = torch.empty(0, 4096, device="cuda")
    cap = 64
    while monitor.steps < steps:
        if monitor.steps % 40 == 0 and cap <= 512:  # doubling
            new = torch.empty(cap, 4096, device="cuda")
            new[: len(store)] = store
            store = new
            cap *= 2
        training.step()
        monitor.step()


def lr_finder_then_training(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    state = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
    losses = []
    for n in range(steps):
        training.step()
        losses.append(torch.zeros((), device="cuda"))
        if n == 60:
            training.model.load_state_dict(state[0])
            training.optimizer.load_state_dict(state[1])
            losses.clear()
            del state
            state = None
        monitor.step()


def rare_long_batches(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        n = random.randint(8, 128) if random.random() < 0.97 else random.randint(20000, 60000)
        b = training.batch(n)
        out = training.model(b)
        out.mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def lognormal_lengths(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        b = training.batch(max(1, int(random.lognormvariate(6, 1.5))))
        out = training.model(b)
        out.mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def curriculum_unrolled_rnn(monitor: Monitor, steps: int) -> None:
    """more time steps, more blocks, in the graph which is alive at step"""
    cell = nn.GRUCell(64, 64).cuda()
    for n in range(steps):
        h = torch.zeros(32, 64, device="cuda")
        for _ in range(2 + n // 8):
            h = cell(torch.randn(32, 64, device="cuda"), h)
        loss = h.mean()
        loss.backward()
        monitor.step()


def curriculum_unrolled_rnn_outputs(monitor: Monitor, steps: int) -> None:
    """outputs list of last batch alive at the step; length ramps up by one each 4 steps to 60"""
    cell = nn.GRUCell(64, 64).cuda()
    for n in range(steps):
        h = torch.zeros(64, 64, device="cuda")
        outs = []
        for _ in range(min(60, 2 + n // 4)):
            h = cell(torch.randn(64, 64, device="cuda"), h)
            outs.append(h)
        loss = torch.stack(outs).mean()
        loss.backward()
        monitor.step()


def fragmentation_only(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        xs = [torch.empty(random.randint(1, 8) << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        random.shuffle(xs)
        del xs[::2]
        ys = [torch.empty(random.randint(1, 8) << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
        del xs, ys
        training.step()
        monitor.step()


def empty_cache_every_n(monitor: Monitor, steps: int) -> None:
    training = Training()
    for n in range(steps):
        b = training.batch(random.randint(100, 20000))
        training.model(b).mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        if n % 9 == 8:
            torch.cuda.empty_cache()
        monitor.step()


def counters_reset_each_epoch(monitor: Monitor, steps: int) -> None:
    training = Training()
    for n in range(steps):
        training.step(random.randint(10, 4000))
        if n % 30 == 29:
            torch.cuda.reset_peak_memory_stats()
        monitor.step()


def grads_accumulated_over_32(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    losses = []
    for n in range(steps):
        loss = training.model(training.batch()).mean()
        loss.backward()
        losses.append(loss.detach())
        if n % 32 == 31:
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses = []
        monitor.step()


def graph_over_16_steps(monitor: Monitor, steps: int) -> None:
    """truncated BPTT: graph held for 16 steps"""
    cell = nn.GRUCell(64, 64).cuda()
    h = torch.zeros(64, 64, device="cuda")
    for n in range(steps):
        h = cell(torch.randn(64, 64, device="cuda"), h)
        if n % 16 == 15:
            h.mean().backward()
            h = h.detach()
        monitor.step()


def scalar_metrics_per_epoch(monitor: Monitor, steps: int) -> None:
    training = Training()
    m = defaultdict(list)
    for n in range(steps):
        training.step()
        for k in ("loss", "acc", "f1", "norm"):
            m[k].append(torch.zeros((), device="cuda"))
        if n % 150 == 149:
            m.clear()
        monitor.step()


def prefetch_thread(monitor: Monitor, steps: int) -> None:
    training = Training()
    q = queue.Queue(maxsize=6)

    def load():
        for _ in range(steps):
            q.put(torch.zeros(random.randint(1000, 100000), device="cuda"))

    t = threading.Thread(target=load, daemon=True)
    t.start()
    for _n in range(steps):
        q.get()
        training.step()
        monitor.step()


def rope_cache_grows_to_longest(monitor: Monitor, steps: int) -> None:
    training = Training()
    cache = torch.zeros(0, 64, device="cuda")
    for _n in range(steps):
        length = random.randint(1, 8192)
        if length > len(cache):
            cache = torch.zeros(length, 64, device="cuda")
        training.step(random.randint(1, 100))
        monitor.step()


def compiled(monitor: Monitor, steps: int) -> None:
    training = Training()
    f = torch.compile(training.model, backend="aot_eager")
    for n in range(steps):
        f(training.batch(32 if n < 50 else random.choice([16, 24, 48]))).mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def eval_set_cached_on_first_eval(monitor: Monitor, steps: int) -> None:
    training = Training()
    held = None
    while monitor.steps < steps:
        for _ in range(15):
            training.step()
            monitor.step()
        with monitor.phase("eval"), torch.no_grad():
            if held is None:
                held = [training.batch(2000) for _ in range(20)]
            for b in held:
                training.model(b)
                monitor.step()


def ppo_rollouts(monitor: Monitor, steps: int) -> None:
    """rollout of 32 env steps with monitor.step each, then 8 updates"""
    training = Training()
    while monitor.steps < steps:
        roll = []
        for _ in range(32):
            with torch.no_grad():
                roll.append((torch.zeros(8192, device="cuda"), training.model(training.batch(32))))
            monitor.step()
        for _ in range(8):
            training.step(512)
            monitor.step()


def gan_with_history_pool(monitor: Monitor, steps: int) -> None:
    training = Training()
    pool = []
    for _n in range(steps):
        img = torch.zeros(KEPT_FLOATS, device="cuda")
        if len(pool) < 20:
            pool.append(img)
        elif random.random() < 0.5:
            pool[random.randrange(20)] = img
        training.step(random.randint(1, 99))
        monitor.step()


def optimizer_swapped_midway(monitor: Monitor, steps: int) -> None:
    training = Training(256, torch.optim.SGD)
    for n in range(steps):
        if n == 77:
            training.optimizer = torch.optim.AdamW(training.model.parameters())
        training.step()
        monitor.step()


def anomaly_and_checkpointing(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    for n in range(steps):
        b = training.batch(random.randint(10, 900)).requires_grad_()
        checkpoint(training.model, b, use_reentrant=bool(n % 2)).mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def streams_record(monitor: Monitor, steps: int) -> None:
    training = Training()
    s = torch.cuda.Stream()
    for _n in range(steps):
        x = torch.zeros(random.randint(1, 500000), device="cuda")
        with torch.cuda.stream(s):
            _y = x * 2
        x.record_stream(s)
        torch.cuda.current_stream().wait_stream(s)
        training.step()
        monitor.step()


def beam_search_lengths(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        _beams = [torch.zeros(1 + random.randint(0, 60000), device="cuda") for _ in range(random.choice([1, 2, 4, 8]))]
        training.step()
        monitor.step()


def graph_batches_number_of_nodes(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        graphs = [torch.zeros(random.randint(10, 3000), device="cuda") for _ in range(random.randint(1, 64))]
        out = training.model(training.batch(len(graphs)))
        out.mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def number_of_boxes_drifts_up(monitor: Monitor, steps: int) -> None:
    """blocks follow the batch and drift up slowly, with noise"""
    training = Training()
    for n in range(steps):
        _boxes = [torch.zeros(4096, device="cuda") for _ in range(5 + n // 10 + random.randint(0, 10))]
        training.step()
        monitor.step()


def warm_up_of_workspaces_by_shape(monitor: Monitor, steps: int) -> None:
    training = Training()
    ws = {}
    for n in range(steps):
        if n in (3, 9, 17, 26, 31, 44):
            ws[n] = torch.zeros(1 << 18, device="cuda")
        training.step()
        monitor.step()
