"""Loops that do not leak, though memory moves: what they keep is bounded."""

import contextlib
import random
from collections import deque

import torch
from torch import nn

from tests.training.monitor.loops import KEPT_FLOATS, Training, model_of
from ullage.training.monitor.monitor import Monitor


def plain(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        training.step()
        monitor.step()


def random_lengths(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        batch = training.batch(random.randint(1, 25600))
        out = training.model(batch)
        out.square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def eval_phases(monitor: Monitor, steps: int) -> None:
    training = Training()
    while monitor.steps < steps:
        for _ in range(20):
            training.step(random.randint(1, 512))
            monitor.step()
        with monitor.phase("eval"), torch.no_grad():
            for _ in range(6):
                out = training.model(training.batch(2048))
                del out
                monitor.step()


def predictions_of_an_eval(monitor: Monitor, steps: int) -> None:
    training = Training()
    while monitor.steps < steps:
        for _ in range(20):
            training.step()
            monitor.step()
        kept = []
        with monitor.phase("eval"), torch.no_grad():
            for _ in range(20):
                kept.append(training.model(training.batch(1024)))
                monitor.step()
            torch.cat(kept).mean().item()
            kept.clear()


def evals_without_a_phase(monitor: Monitor, steps: int) -> None:
    training = Training()
    for number in range(steps):
        training.step(random.randint(1, 512))
        monitor.step()
        if number % 25 == 24:
            with torch.no_grad():
                outs = [training.model(training.batch(1024)) for _ in range(8)]
            torch.cat(outs).mean().item()


def optimizer_state_late(monitor: Monitor, steps: int) -> None:
    training = Training(256)
    for number in range(steps):
        training.model(training.batch()).mean().backward()
        if number >= 10:
            training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()


def gradient_accumulation(monitor: Monitor, steps: int) -> None:
    training = Training(128)
    losses = []
    for number in range(steps):
        loss = training.model(training.batch(random.randint(16, 256))).square().mean()
        loss.backward()
        losses.append(loss.detach())
        if number % 16 == 15:
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses.clear()
        monitor.step()


def average_of_weights_late(monitor: Monitor, steps: int) -> None:
    training, average = Training(512), None
    for number in range(steps):
        training.step()
        if number == 100:
            average = torch.optim.swa_utils.AveragedModel(training.model)
        if average is not None:
            average.update_parameters(training.model)
        monitor.step()


def floats_in_a_list(monitor: Monitor, steps: int) -> None:
    training, losses = Training(), []
    for _ in range(steps):
        loss = training.model(training.batch()).square().mean()
        loss.backward()
        losses.append(loss.item())
        monitor.step()


def losses_in_a_list_for_an_epoch(monitor: Monitor, steps: int) -> None:
    training, losses = Training(), []
    for number in range(steps):
        loss = training.model(training.batch()).square().mean()
        loss.backward()
        losses.append(loss.detach())  # 512 bytes
        if number % 100 == 99:
            torch.stack(losses).mean().item()
            losses.clear()
        monitor.step()


def two_optimizers(monitor: Monitor, steps: int) -> None:
    generator, critic = Training(64), Training(64, torch.optim.RMSprop)
    for number in range(steps):
        made = generator.model[:4](generator.batch(random.randint(8, 64)))
        critic.optimizer.zero_grad()
        (critic.model(made.detach()).mean() - critic.model(critic.batch()).mean()).backward()
        critic.optimizer.step()
        if number % 5 == 4:
            generator.optimizer.zero_grad()
            critic.model(made).mean().backward()
            generator.optimizer.step()
        monitor.step()


def mixed_resolutions(monitor: Monitor, steps: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        side = random.choice((32, 48, 64, 96, 128, 160))
        images = torch.randn(4, 3, side, side, device="cuda")
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step()


def saving(monitor: Monitor, steps: int) -> None:
    training, best = Training(128), {}
    for number in range(steps):
        training.step()
        monitor.step()
        if number % 20 == 19:
            with monitor.phase("save"):
                best = {name: one.clone() for name, one in training.model.state_dict().items()}
    assert best


def a_search_for_the_learning_rate(monitor: Monitor, steps: int) -> None:
    training, losses = Training(128), []
    first = {name: one.clone() for name, one in training.model.state_dict().items()}
    for number in range(steps):
        for group in training.optimizer.param_groups:
            group["lr"] = 1e-6 * 1.1**number
        loss = training.model(training.batch()).square().mean()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        losses.append(loss.item())
        if number == 100:
            training.model.load_state_dict(first)
            training.optimizer.state.clear()
        monitor.step()


def a_buffer_that_fills_soon(monitor: Monitor, steps: int) -> None:
    training, replay = Training(), []
    for number in range(steps):
        state = torch.randn(2 * KEPT_FLOATS, device="cuda")
        if len(replay) < 24:
            replay.append(state)
        else:
            replay[number % 24] = state
        training.step()
        monitor.step()


def a_deque_with_an_end(monitor: Monitor, steps: int) -> None:
    training, recent = Training(), deque[torch.Tensor](maxlen=16)
    for _ in range(steps):
        training.step(random.randint(1, 512))
        recent.append(torch.randn(KEPT_FLOATS, device="cuda"))
        monitor.step()


def hidden_state_with_detach(monitor: Monitor, steps: int) -> None:
    cell = nn.GRUCell(64, 64).cuda()
    hidden = torch.zeros(32, 64, device="cuda")
    for _ in range(steps):
        hidden = cell(torch.randn(32, 64, device="cuda"), hidden.detach())
        hidden.square().mean().backward()
        monitor.step()


def masks_by_length(monitor: Monitor, steps: int) -> None:
    training, masks = Training(), {}
    for _ in range(steps):
        length = random.randint(1, 16)
        if length not in masks:
            masks[length] = torch.ones(8 * length, 8 * length, device="cuda").tril()
        training.step(length)
        monitor.step()


def growing_curriculum(monitor: Monitor, steps: int) -> None:
    training = Training()
    for number in range(steps):
        training.step(32 * (1 + number // 50))
        monitor.step()


def mixed_precision(monitor: Monitor, steps: int) -> None:
    training, scaler = Training(128), torch.amp.GradScaler("cuda")
    for _ in range(steps):
        training.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = training.model(training.batch(random.randint(8, 64))).square().mean()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        monitor.step()


def detections(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        training.step(random.randint(1, 256))
        boxes = [torch.ones(random.randint(1, 64), 256, device="cuda") for _ in range(random.randint(0, 30))]
        monitor.step()
    assert boxes is not None


def weights_that_thaw(monitor: Monitor, steps: int) -> None:
    model = model_of(128, depth=4)
    layers = list(model.children())
    for layer in layers:
        layer.requires_grad_(requires_grad=False)
    for number in range(steps):
        if number % 30 == 0 and layers:
            for layer in layers[-2:]:
                layer.requires_grad_(requires_grad=True)
            del layers[-2:]
            live = [one for one in model.parameters() if one.requires_grad]
            optimizer = torch.optim.AdamW(live)
        optimizer.zero_grad()
        model(torch.randn(32, 128, device="cuda")).mean().backward()
        optimizer.step()
        monitor.step()


def an_exception_each_step(monitor: Monitor, steps: int) -> None:
    training = Training()
    for _ in range(steps):
        training.step()
        with contextlib.suppress(ValueError):
            held = torch.ones(KEPT_FLOATS, device="cuda")
            raise ValueError(len(held))
        monitor.step()


def lengths_that_grow(monitor: Monitor, steps: int) -> None:
    training = Training()
    for number in range(steps):
        batch = training.batch(64 + 256 * number)  # sorted by length: what a step leaves is its own batch
        training.model(batch).square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        monitor.step()
