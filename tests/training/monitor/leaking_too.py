"""More loops that leak, in ways that people have reported: each on the line that says so."""

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import gc
import itertools
import queue
import random
import threading
import weakref
from collections import defaultdict
from typing import Any, ClassVar

import torch
from torch import nn

from tests.training.monitor.loops import KEPT_FLOATS, Training
from ullage.training.monitor.monitor import Monitor

RESULTS: list[dict[str, Any]] = []
LOCAL = threading.local()
VAR: contextvars.ContextVar[Any] = contextvars.ContextVar("VAR")


class Meter:
    """What a class keeps."""

    history: ClassVar[list[torch.Tensor]] = []


def with_late_state(monitor: Monitor, steps: int) -> None:
    training = Training(256)
    kept = []
    for n in range(steps):
        training.model(training.batch()).mean().backward()
        if n > 15:
            training.optimizer.step()
        training.optimizer.zero_grad()
        kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def accumulation_and_leak(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    kept = []
    for n in range(steps):
        training.model(training.batch(random.randint(16, 300))).mean().backward()
        if n % 8 == 7:
            training.optimizer.step()
            training.optimizer.zero_grad()
        kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def begun_at_67_lengths(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for n in range(steps):
        b = training.batch(random.randint(1, 20000))
        training.model(b).mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        if n >= 67:
            kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def dict_of_logits(monitor: Monitor, steps: int) -> None:
    training = Training()
    for n in range(steps):
        training.step()
        with torch.no_grad():
            out = training.model(training.batch(1024))  # leaks
        RESULTS.append({"step": n, "logits": out, "n": 5})
        monitor.step()


def class_attribute(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        training.step()
        Meter.history.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def closure_nonlocal(monitor: Monitor, steps: int) -> None:
    training = Training()
    total = []

    def add(x):
        total.append(x.square())  # leaks

    for _n in range(steps):
        training.step()
        add(torch.zeros(KEPT_FLOATS, device="cuda"))
        monitor.step()


def running_average(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    avg = 0
    for _n in range(steps):
        training.step()
        loss = training.model(training.batch(256)).square().mean()  # leaks
        avg = 0.9 * avg + 0.1 * loss
        monitor.step()


def retained_graphs(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    losses = []
    for _n in range(steps):
        training.optimizer.zero_grad()
        loss = training.model(training.batch(256)).square().mean()  # leaks
        loss.backward(retain_graph=True)
        training.optimizer.step()
        losses.append(loss)
        monitor.step()


def lstm_not_detached(monitor: Monitor, steps: int) -> None:
    cell = nn.LSTMCell(64, 128).cuda()
    hidden = (torch.zeros(64, 128, device="cuda"), torch.zeros(64, 128, device="cuda"))
    for _n in range(steps):
        hidden = cell(torch.randn(64, 64, device="cuda"), hidden)  # leaks
        monitor.step()


def schedulers_kept(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    schedulers = []
    for _n in range(steps):
        opt = torch.optim.Adam(training.model.parameters())
        s = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1.0)
        training.model(training.batch()).mean().backward()
        opt.step()  # leaks
        s.step()
        schedulers.append(s)
        monitor.step()


def queue_nobody_reads(monitor: Monitor, steps: int) -> None:
    training = Training()
    q = queue.Queue()
    go = threading.Semaphore(0)
    done = threading.Semaphore(0)

    def work():
        for _ in range(steps):
            go.acquire()
            q.put(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
            done.release()

    th = threading.Thread(target=work, daemon=True)
    th.start()
    for _n in range(steps):
        training.step()
        go.release()
        done.acquire()
        monitor.step()


def fifth_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for n in range(steps):
        training.step()
        if n % 5 == 0:
            kept.append(torch.zeros(5 * KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def fifth_step_of_64(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for n in range(steps):
        training.step(random.randint(1, 2000))
        if n % 5 == 2:
            kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def many_small(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for _n in range(steps):
        training.step()
        kept.extend([torch.zeros(1, device="cuda") for _ in range(128)])  # leaks
        monitor.step()


def buffers_by_name(monitor: Monitor, steps: int) -> None:
    training = Training()
    for n in range(steps):
        training.model.register_buffer(f"b{n}", torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        training.step()
        monitor.step()


def hooks_each_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        mask = torch.ones(KEPT_FLOATS, device="cuda")  # leaks
        training.model[0].register_forward_hook(lambda m, i, o, mask=mask: None)
        training.step()
        monitor.step()


def grad_hooks_on_parameter(monitor: Monitor, steps: int) -> None:
    training = Training()
    p = training.model[0].weight
    for _n in range(steps):
        mask = torch.ones(KEPT_FLOATS, device="cuda")  # leaks
        p.register_hook(functools.partial(lambda mask, g: None, mask))
        training.step()
        monitor.step()


def parameter_list_grows(monitor: Monitor, steps: int) -> None:
    training = Training()
    params = nn.ParameterList()
    for _n in range(steps):
        params.append(nn.Parameter(torch.zeros(KEPT_FLOATS, device="cuda")))  # leaks
        training.step()
        monitor.step()


def cycles_without_gc(monitor: Monitor, steps: int) -> None:
    gc.disable()
    training = Training()

    class Node:
        pass

    for _n in range(steps):
        a = Node()
        a.me = a
        a.t = torch.zeros(KEPT_FLOATS, device="cuda")  # leaks
        del a
        training.step()
        monitor.step()


def generator_local(monitor: Monitor, steps: int) -> None:
    training = Training()

    def made():
        seen = []
        while True:
            x = torch.zeros(KEPT_FLOATS, device="cuda")  # leaks
            seen.append(x)
            yield x

    gen = made()
    for _n in range(steps):
        next(gen)
        training.step()
        monitor.step()


def begun_at_100(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for n in range(steps):
        training.step(random.randint(1, 512))
        if n >= 100:
            kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def with_curriculum(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for n in range(steps):
        b = training.batch(64 + 64 * n)
        training.model(b).mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def cache_by_random_key(monitor: Monitor, steps: int) -> None:
    training = Training()
    cache = {}
    for _n in range(steps):
        length = random.randint(1 << 14, 1 << 18)
        if length not in cache:
            cache[length] = torch.ones(length, device="cuda")  # leaks
        training.step()
        monitor.step()


def defaultdict_of_lists(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    log = defaultdict(list)
    for _n in range(steps):
        out = training.model(training.batch(256))  # leaks
        log["loss"].append(out.mean())
        log["acc"].append(out.argmax(1).float().mean())
        training.step()
        monitor.step()


def threading_local(monitor: Monitor, steps: int) -> None:
    training = Training()
    LOCAL.seen = []
    for _n in range(steps):
        LOCAL.seen.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        training.step()
        monitor.step()


def ctx_keeps_its_output(monitor: Monitor, steps: int) -> None:
    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = x * 2  # leaks
            ctx.out = out
            return out

        @staticmethod
        def backward(ctx, g):
            return g * 2

    training = Training()
    outs = []
    x = torch.zeros(KEPT_FLOATS, device="cuda", requires_grad=True)
    for _n in range(steps):
        outs.append(Op.apply(x).sum())
        training.step()
        monitor.step()


def partials(monitor: Monitor, steps: int) -> None:
    training = Training()
    jobs = []
    for _n in range(steps):
        jobs.append(functools.partial(print, torch.zeros(KEPT_FLOATS, device="cuda")))  # leaks
        training.step()
        monitor.step()


def tee_unread(monitor: Monitor, steps: int) -> None:
    training = Training()
    first, _unread = itertools.tee(torch.zeros(KEPT_FLOATS, device="cuda") for _ in itertools.count())  # leaks
    for _n in range(steps):
        next(first)
        training.step()
        monitor.step()


def futures_kept(monitor: Monitor, steps: int) -> None:
    training = Training()
    futures = []

    def job():
        return torch.zeros(KEPT_FLOATS, device="cuda")  # leaks

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _n in range(steps):
            f = pool.submit(job)
            f.result()
            futures.append(f)
            training.step()
            monitor.step()


def adapter_each_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    adapters = nn.ModuleDict()
    for n in range(steps):
        adapters[str(n)] = nn.Linear(128, 128, device="cuda")  # leaks
        training.step()
        monitor.step()


def weights_each_step(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    averages = []
    for _n in range(steps):
        training.step()
        averages.append(copy.deepcopy(training.model.state_dict()))  # leaks
        monitor.step()


def linked_list(monitor: Monitor, steps: int) -> None:
    training = Training()
    head = None
    for _n in range(steps):
        head = (torch.zeros(KEPT_FLOATS, device="cuda"), head)  # leaks
        training.step()
        monitor.step()


def error_contexts(monitor: Monitor, steps: int) -> None:
    training = Training()
    last = None

    def fail():
        held = torch.zeros(KEPT_FLOATS, device="cuda")  # leaks
        raise ValueError(len(held))

    for _n in range(steps):
        try:
            try:
                raise last if last else RuntimeError()
            except Exception:
                fail()
        except ValueError as e:
            last = e
        training.step()
        monitor.step()


def eval_only_few(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for _n in range(steps):
        for _ in range(3):
            training.step()
            monitor.step()
        with monitor.phase("eval"), torch.no_grad():
            kept.append(training.model(training.batch(1024)))  # leaks


def large_blocks(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for _n in range(steps):
        training.step()
        kept.append(torch.zeros(20 << 18, device="cuda"))  # leaks
        monitor.step()


def with_empty_cache(monitor: Monitor, steps: int) -> None:
    training = Training()
    kept = []
    for _n in range(steps):
        training.step()
        kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        monitor.step()


def tensor_that_grows_in_place(monitor: Monitor, steps: int) -> None:
    training = Training()
    grown = torch.zeros(KEPT_FLOATS, device="cuda")
    for _n in range(steps):
        grown.resize_(grown.numel() + KEPT_FLOATS)  # leaks
        training.step()
        monitor.step()


def cat_among_lengths(monitor: Monitor, steps: int) -> None:
    training = Training()
    store = torch.zeros(0, 1024, device="cuda")
    for _n in range(steps):
        store = torch.cat([store, torch.zeros(16, 1024, device="cuda")])  # leaks
        training.step(random.randint(1, 256))
        monitor.step()


def leak_with_drops(monitor: Monitor, steps: int) -> None:
    """clears half of it now and then, yet grows"""
    training = Training()
    kept = []
    for n in range(steps):
        training.step()
        kept += [torch.zeros(KEPT_FLOATS, device="cuda") for _ in range(3)]  # leaks
        if n % 4 == 3:
            del kept[-4:]
        monitor.step()


def contextvar_stack(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        VAR.set((torch.zeros(KEPT_FLOATS, device="cuda"), VAR.get(None)))  # leaks
        training.step()
        monitor.step()


def asyncio_tasks(monitor: Monitor, steps: int) -> None:
    training = Training()
    tasks = []

    async def one():
        return torch.zeros(KEPT_FLOATS, device="cuda")  # leaks

    async def main():
        for _n in range(steps):
            k = asyncio.create_task(one())
            tasks.append(k)
            await k
            training.step()
            monitor.step()

    asyncio.run(main())


def optimizer_state_extra(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    p = training.model[0].weight
    for n in range(steps):
        training.step()
        training.optimizer.state[p][f"old{n}"] = p.detach().clone()  # leaks
        monitor.step()


def finalizers(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _n in range(steps):
        weakref.finalize(training, print, torch.zeros(KEPT_FLOATS, device="cuda"))  # leaks
        training.step()
        monitor.step()
