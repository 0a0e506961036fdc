"""Loops that leak: each plants one leak, on the line that says so, amid training that is as any other."""

import random
from collections import deque
from typing import Any

import torch
from torch import nn

from tests.training.monitor.loops import KEPT_FLOATS, Training
from ullage.training.monitor.monitor import Monitor

CACHE: dict[int, torch.Tensor] = {}


def losses_with_their_graph(monitor: Monitor, steps: int) -> None:
    training, losses = Training(128), []
    for _ in range(steps):
        training.step()
        losses.append(training.model(torch.randn(128, 128, device="cuda")).square().mean())  # leaks
        monitor.step()


def a_sum_of_losses(monitor: Monitor, steps: int) -> None:
    training, total = Training(128), torch.zeros((), device="cuda")
    for _ in range(steps):
        training.step()
        total = total + training.model(training.batch(128)).square().mean()  # leaks
        monitor.step()


def predictions(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        training.step()
        with torch.no_grad():
            out = training.model(training.batch(1024))  # leaks
        kept.append(out)
        monitor.step()


def one_row_of_each(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        training.step()
        with torch.no_grad():
            out = training.model(training.batch(1024))  # leaks
        kept.append(out[0])
        monitor.step()


def a_forward_hook_that_appends(monitor: Monitor, steps: int) -> None:
    training, seen = Training(), []
    training.model[2].register_forward_hook(lambda module, given, made: seen.append(made.detach()))
    for _ in range(steps):
        training.optimizer.zero_grad()
        training.model(training.batch(256)).mean().backward()  # leaks
        training.optimizer.step()
        monitor.step()


def a_gradient_hook_that_appends(monitor: Monitor, steps: int) -> None:
    training, seen = Training(128), []
    training.model[2].weight.register_hook(seen.append)
    for _ in range(steps):
        training.optimizer.zero_grad()
        loss = training.model(training.batch()).mean()
        loss.backward()  # leaks
        training.optimizer.step()
        monitor.step()


def a_gradient_hook_that_copies(monitor: Monitor, steps: int) -> None:
    training, seen = Training(128), []
    training.model[2].weight.register_hook(lambda gradient: seen.append(gradient.clone()))  # leaks
    for _ in range(steps):
        training.step()
        monitor.step()


def a_cache_by_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    for number in range(steps):
        training.step()
        CACHE[number] = torch.ones(KEPT_FLOATS, device="cuda")  # leaks
        monitor.step()


def hidden_state_without_detach(monitor: Monitor, steps: int) -> None:
    training, cell = Training(), nn.GRUCell(64, 64).cuda()
    hidden = torch.zeros(32, 64, device="cuda")
    for _ in range(steps):
        training.step()
        hidden = cell(training.batch(), hidden)  # leaks
        monitor.step()


def states_joined(monitor: Monitor, steps: int) -> None:
    training, memory = Training(), torch.zeros(1, KEPT_FLOATS, device="cuda")
    for _ in range(steps):
        training.step()
        memory = torch.cat([memory, torch.zeros(1, KEPT_FLOATS, device="cuda")])  # leaks
        monitor.step()


def exceptions_that_are_kept(monitor: Monitor, steps: int) -> None:
    training, errors = Training(), []

    def fails() -> None:
        held = torch.ones(KEPT_FLOATS, device="cuda")  # leaks
        raise ValueError(f"{len(held)} are no multiple of 3")

    for _ in range(steps):
        training.step()
        try:
            fails()
        except ValueError as error:
            errors.append(error)
        monitor.step()


def closures_in_a_list(monitor: Monitor, steps: int) -> None:
    training, later = Training(), []
    for _ in range(steps):
        training.step()
        noise = torch.randn(KEPT_FLOATS, device="cuda")  # leaks
        later.append(lambda noise=noise: noise.sum())
        monitor.step()


def optimizers_that_are_kept(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-3)
        training.model(training.batch()).mean().backward()
        optimizer.step()  # leaks
        kept.append(optimizer)
        monitor.step()


def a_deque_without_end(monitor: Monitor, steps: int) -> None:
    training, recent = Training(), deque[torch.Tensor]()
    for _ in range(steps):
        training.step()
        recent.append(torch.randn(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def every_fourth_step(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for number in range(steps):
        training.step()
        if number % 4 == 3:
            kept.append(torch.randn(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def among_random_lengths(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        batch = training.batch(random.randint(1, 25600))  # 256 bytes an item: 100 times what leaks
        loss = training.model(batch).square().mean()
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        kept.append(torch.ones(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def predictions_of_random_lengths(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        training.step(random.randint(1, 4096))
        with torch.no_grad():
            out = training.model(training.batch(random.randint(512, 4096)))  # leaks
        kept.append(out)
        monitor.step()


def now_and_then(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for _ in range(steps):
        training.step()
        if random.random() < 0.75:
            kept.append(torch.randn(2 * KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()


def an_object_with_a_cycle(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []

    class Episode:
        def __init__(self) -> None:
            self.itself: Any = self
            self.states = torch.zeros(KEPT_FLOATS, device="cuda")  # leaks

    for _ in range(steps):
        training.step()
        kept.append(Episode())
        monitor.step()


def in_eval_alone(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    done = 0
    while done < steps:
        for _ in range(10):
            training.step()
            monitor.step()
        with monitor.phase("eval"), torch.no_grad():
            for _ in range(10):
                kept.append(training.model(training.batch(1024)))  # leaks
                monitor.step()
                done += 1


def in_train_with_evals(monitor: Monitor, steps: int) -> None:
    training, kept = Training(), []
    for number in range(steps):
        training.step()
        kept.append(torch.ones(KEPT_FLOATS, device="cuda"))  # leaks
        monitor.step()
        if number % 10 == 9:
            with monitor.phase("eval"), torch.no_grad():
                for _ in range(4):
                    training.model(training.batch(512))
                    monitor.step()


def at_every_save(monitor: Monitor, steps: int) -> None:
    training, saved = Training(128), []
    for _ in range(steps):
        training.step()
        monitor.step()
        with monitor.phase("save"):
            saved.append({name: one.clone() for name, one in training.model.state_dict().items()})  # leaks


ALL = [
    losses_with_their_graph,
    a_sum_of_losses,
    predictions,
    one_row_of_each,
    a_forward_hook_that_appends,
    a_gradient_hook_that_appends,
    a_gradient_hook_that_copies,
    a_cache_by_step,
    hidden_state_without_detach,
    states_joined,
    exceptions_that_are_kept,
    closures_in_a_list,
    optimizers_that_are_kept,
    a_deque_without_end,
    every_fourth_step,
    among_random_lengths,
    predictions_of_random_lengths,
    now_and_then,
    an_object_with_a_cycle,
    in_eval_alone,
    in_train_with_evals,
    at_every_save,
]
