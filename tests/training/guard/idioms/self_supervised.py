"""Models that teach themselves: momentum encoders, centers, queues, banks, codebooks."""

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.training.guard.idioms.idiom import ITEMS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World


class Momentum(nn.Module):
    """A student, and a teacher that follows it in forward; how it is written, and when."""

    def __init__(self, way: str, *, begins: int = 0) -> None:
        super().__init__()
        self.student, self.way, self.begins, self.calls = net(), way, begins, 0
        self.teacher = frozen(net())

    @torch.no_grad()
    def follow(self) -> None:
        for ours, theirs in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
            if self.way == "data":
                theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)
            elif self.way == "rebound":
                theirs.data = theirs.data * 0.9 + ours.data * 0.1
            else:
                theirs.lerp_(ours, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.begins:
            self.follow()
        return (self.student(x) - self.teacher(x)).pow(2).mean()


def moco_data() -> World:
    model = Momentum("data")
    return world(model, inputs(), model)


def moco_rebound() -> World:
    model = Momentum("rebound")
    return world(model, inputs(), model)


def byol_in_place() -> World:
    model = Momentum("lerp")
    return world(model, inputs(), model)


def momentum_after_warm_up() -> World:
    """The teacher begins to follow in the second step, when nothing of it is copied any more."""
    model = Momentum("data", begins=1)
    return world(model, inputs(), model)


def teacher_hidden_in_a_list() -> World:
    """Kept out of state_dict() by a list, as some do."""
    model = net()
    model.hidden = [frozen(net())]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), model.hidden[0].parameters(), strict=True):
                theirs.lerp_(ours, 0.2)
        return (model(x) - model.hidden[0](x)).pow(2).mean()

    return world(model, inputs(), loss_of)


def teacher_outside() -> World:
    """The teacher is a variable of the loop, unknown to the guard."""
    model = net()
    teacher = frozen(net())

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), teacher.parameters(), strict=True):
                theirs.mul_(0.8).add_(ours, alpha=0.2)
        return (model(x) - teacher(x)).pow(2).mean()

    return world(model, inputs(), loss_of)


class Center(nn.Module):
    """DINO's loss, whose center moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        target = ((theirs - self.center) / 0.1).softmax(-1).detach()
        self.center = self.center * 0.9 + theirs.detach().mean(0, keepdim=True) * 0.1
        return -(target * ours.log_softmax(-1)).sum(-1).mean()


def dino_center_outside() -> World:
    """The criterion has a buffer, and is not the guard's."""
    model, teacher, criterion = net(), frozen(net()), Center()
    return world(model, inputs(), lambda x: criterion(model(x), teacher(x)))


class Queue(nn.Module):
    """MoCo's queue of keys and its place, as buffers or as attributes."""

    def __init__(self, *, are_buffers: bool, rows: int = 32) -> None:
        super().__init__()
        self.encoder, self.pointer = net(), 0
        queue = F.normalize(torch.randn(4, rows), dim=0)
        if are_buffers:
            self.register_buffer("queue", queue)
        else:
            self.queue = queue

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = F.normalize(self.encoder(x), dim=1)
        key = F.normalize(self.encoder(x * 1.1), dim=1).detach()
        negative = query @ self.queue.clone()
        logits = torch.cat([(query * key).sum(1, keepdim=True), negative], 1)
        self.queue[:, self.pointer : self.pointer + len(x)] = key.T
        self.pointer = (self.pointer + len(x)) % self.queue.size(1)
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))


def queue_of_buffers() -> World:
    model = Queue(are_buffers=True)
    return world(model, inputs(), model)


def queue_of_attributes() -> World:
    model = Queue(are_buffers=False)
    return world(model, inputs(), model)


def queue_too_large_to_copy_at_first() -> World:
    """A megabyte and more: seen in the first step to change, and copied from then on."""
    model = Queue(are_buffers=False, rows=40_000)
    return world(model, inputs(), model)


def bank_in_a_deque() -> World:
    model = net()
    model.bank = deque(maxlen=3)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        old = sum((one.mean(0) for one in model.bank), torch.zeros(4))
        model.bank.append(out.detach())
        return (out - old).pow(2).mean()

    return world(model, inputs(), loss_of)


def bank_around_the_loss() -> World:
    """A list of tensors beside the model."""
    model, bank = net(), []

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        old = sum((one.mean(0) for one in bank), torch.zeros(4))
        bank.append(out.detach())
        return (out - old).pow(2).mean()

    return world(model, inputs(), loss_of)


def bank_tensor_around_the_loss() -> World:
    model, bank = net(), torch.zeros(ITEMS, 4)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        loss = (out - bank.mean(0)).pow(2).mean()
        bank[: len(x)] = out.detach()
        return loss

    return world(model, inputs(), loss_of)


class Codebook(nn.Module):
    """VQ-VAE's codebook, moved by running means of what was assigned; as buffers, or as an embedding's weight."""

    def __init__(self, *, is_embedding: bool) -> None:
        super().__init__()
        self.encoder, self.is_embedding = net(), is_embedding
        codes = torch.randn(7, 4)
        self.register_buffer("sizes", torch.ones(7))
        self.register_buffer("sums", codes.clone())
        if is_embedding:
            self.codes = frozen(nn.Embedding.from_pretrained(codes))
        else:
            self.register_buffer("codes", codes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.encoder(x)
        table = self.codes.weight if self.is_embedding else self.codes
        chosen = F.one_hot(torch.cdist(out, table).argmin(1), 7).to(out.dtype)
        loss = (out - (chosen @ table).detach()).pow(2).mean()
        with torch.no_grad():
            self.sizes.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(chosen.T @ out, alpha=0.1)
            table.data.copy_(self.sums / self.sizes[:, None])
        return loss


def codebook_of_buffers() -> World:
    model = Codebook(is_embedding=False)
    return world(model, inputs(), model)


def codebook_of_an_embedding() -> World:
    model = Codebook(is_embedding=True)
    return world(model, inputs(), model)


def swa_after_each_step() -> World:
    """Weights averaged beside the model, in `before_step`, which runs once."""
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)

    def average_now() -> None:
        average.update_parameters(model)

    found = world(model, inputs(), lambda x: model(x).pow(2).mean(), before_step=average_now)
    found.model = nn.ModuleList([model, average])
    return found


def simclr() -> World:
    """Every item is compared with every other one."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        one, other = F.normalize(model(x), dim=1), F.normalize(model(x * 0.9), dim=1)
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(x)))

    return world(model, inputs(), loss_of)


def simclr_declared() -> World:
    found = simclr()
    found.options["splittable"] = False
    return found


def barlow_twins() -> World:
    """The correlation of features over the batch."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        one, other = model(x), model(x * 0.9)
        correlation = (one - one.mean(0)).T @ (other - other.mean(0)) / len(x)
        return (correlation - torch.eye(4)).pow(2).sum()

    return world(model, inputs(), loss_of)


def masked_autoencoder() -> World:
    """Each item has patches masked at random."""
    model = nn.Linear(WIDTH, WIDTH)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        hidden = (torch.rand_like(x) < 0.5).to(x.dtype)
        return (((model(x * (1 - hidden)) - x) ** 2) * 0.5).mean()

    return world(model, inputs(), loss_of)


def diffusion() -> World:
    """A time and noise for each item."""
    model = nn.Linear(WIDTH + 1, WIDTH)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        time = torch.randint(0, 10, (len(x), 1)).to(x.dtype) / 10
        noise: Any = torch.randn_like(x)
        return (model(torch.cat([x * (1 - time) + noise * time, time], 1)) - noise).pow(2).mean()

    return world(model, inputs(), loss_of)
