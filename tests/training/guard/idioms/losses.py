"""Losses of every make: means and sums, over items and over something else, with items that look at each other."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.training.guard.idioms.idiom import ITEMS, STEPS, WIDTH, inputs, net, world
from tests.training.guard.world import World


def _plain(of: Any, **options: Any) -> World:
    model = net()
    batches = [{"x": x, "y": torch.randint(0, 4, (ITEMS,))} for x in inputs()]
    return world(model, batches, lambda batch: of(model(batch["x"]), batch["y"]), **options)


def mean() -> World:
    return _plain(F.cross_entropy)


def summed() -> World:
    """A sum, as the guard is told."""
    return _plain(lambda out, y: F.cross_entropy(out, y, reduction="sum"), reduction="sum")


def summed_undeclared() -> World:
    """A sum, of which the guard knows nothing."""
    return _plain(lambda out, y: F.cross_entropy(out, y, reduction="sum"))


def several() -> World:
    """Two losses, and what is logged."""
    return _plain(lambda out, y: (F.cross_entropy(out, y) + 0.1 * out.pow(2).mean(), {"out": out}))


def with_a_penalty() -> World:
    """A term of the parameters, which has no items."""
    model = net()
    penalty = lambda: sum(one.pow(2).sum() for one in model.parameters())  # noqa: E731
    return world(model, inputs(), lambda x: model(x).pow(2).mean() + 0.1 * penalty())


def _tokens(**options: Any) -> World:
    model = nn.Sequential(nn.Embedding(11, 5), nn.Linear(5, 11))
    lengths = torch.tensor([5, 1, 4, 2, 3, 5, 2, 1])
    batches = []
    for _ in range(STEPS):
        tokens = torch.randint(1, 11, (ITEMS, 5))
        batches.append({"x": tokens, "y": tokens.masked_fill(torch.arange(5) >= lengths[:, None], -100)})
    return world(model, batches, lambda b: F.cross_entropy(model(b["x"]).flatten(0, 1), b["y"].flatten()), **options)


def valid_tokens() -> World:
    """A mean over tokens, of which items have different numbers."""
    return _tokens()


def valid_tokens_weighted() -> World:
    return _tokens(weight=lambda batch: float((batch["y"] != -100).sum()))


def masked_mean() -> World:
    """Normalised by the sum of the whole batch's mask."""
    model = nn.Linear(WIDTH, 4)
    batches = [{"x": x, "mask": (torch.rand(ITEMS, 5) < 0.6).double()} for x in inputs(ITEMS, 5, WIDTH)]

    def loss_of(batch: Any) -> torch.Tensor:
        return (model(batch["x"]).pow(2).mean(-1) * batch["mask"]).sum() / batch["mask"].sum()

    return world(model, batches, loss_of)


def weights_of_items() -> World:
    """Each item has a weight, and the weights of the batch are its norm."""
    model = net()
    batches = [{"x": x, "w": torch.rand(ITEMS)} for x in inputs()]

    def loss_of(batch: Any) -> torch.Tensor:
        return (model(batch["x"]).pow(2).mean(1) * batch["w"]).sum() / batch["w"].sum()

    return world(model, batches, loss_of)


def weights_of_items_in_a_mean() -> World:
    model = net()
    batches = [{"x": x, "w": torch.rand(ITEMS)} for x in inputs()]
    return world(model, batches, lambda b: (model(b["x"]).pow(2).mean(1) * b["w"]).mean())


def triplets() -> World:
    """The hardest positive and negative of the batch."""

    def of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        far = torch.cdist(out, out)
        same = y[:, None] == y
        return (far.masked_fill(~same, 0).amax(1) - far.masked_fill(same, 99).amin(1) + 1).relu().mean()

    return _plain(of)


def triplets_given() -> World:
    """Anchors, positives and negatives as three tensors."""
    model = net()
    batches = [dict(zip("apn", torch.randn(3, ITEMS, WIDTH), strict=True)) for _ in range(STEPS)]
    return world(model, batches, lambda b: F.triplet_margin_loss(*(model(b[name]) for name in "apn")))


def clip_symmetric() -> World:
    """Pictures and texts, and a temperature that is learned."""
    model = nn.ModuleDict({"one": net(), "other": net()})
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))

    def loss_of(batch: Any) -> torch.Tensor:
        one, other = (F.normalize(model[name](batch[name]), dim=1) for name in ("one", "other"))
        logits, target = one @ other.T * model.scale.exp(), torch.arange(len(one))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    return world(model, [{"one": x, "other": x * 2} for x in inputs()], loss_of)


def sampled_softmax() -> World:
    """Negatives are drawn for the whole batch."""
    model = nn.ModuleDict({"net": net(), "classes": nn.Embedding(20, 4)})
    batches = [{"x": x, "y": torch.randint(0, 20, (ITEMS,))} for x in inputs()]

    def loss_of(batch: Any) -> torch.Tensor:
        out = model["net"](batch["x"])
        drawn = torch.multinomial(torch.ones(20), 5)
        logits = torch.cat(
            [(out * model["classes"](batch["y"])).sum(1, keepdim=True), out @ model["classes"](drawn).T], 1
        )
        return F.cross_entropy(logits, torch.zeros(len(out), dtype=torch.long))

    return world(model, batches, loss_of)


def mixup() -> World:
    """Each item is mixed with another one of the batch."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        share = torch.rand(())
        return model(share * x + (1 - share) * x[torch.randperm(len(x))]).pow(2).mean()

    return world(model, inputs(), loss_of)


def ppo() -> World:
    """Advantages are normalised over the batch; the loss's value is zero whatever the gradient is."""
    model = net()
    batches = [{"x": x, "advantage": torch.randn(ITEMS)} for x in inputs()]

    def loss_of(batch: Any) -> torch.Tensor:
        likely = model(batch["x"]).log_softmax(-1)[:, 0]
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return -((likely - likely.detach()).exp() * advantage).mean()

    return world(model, batches, loss_of)


def gradient_penalty() -> World:
    """A gradient inside the loss."""
    model = net(out=1)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).pow(2).mean()

    return world(model, inputs(), loss_of)


def ranking() -> World:
    """A softmax over the batch's items."""
    model = net(out=1)
    return world(model, inputs(), lambda x: -model(x)[:, 0].log_softmax(0)[: len(x) // 2 + 1].mean())


def maximum() -> World:
    """The worst item counts."""
    model = net()
    return world(model, inputs(), lambda x: model(x).pow(2).mean(1).max())


def not_a_number() -> World:
    model = net()
    return world(model, inputs(), lambda x: model(x).pow(2).mean() * float("nan"))


def items_along_another_dimension() -> World:
    model = nn.Linear(WIDTH, 4)
    return world(model, inputs(5, ITEMS, WIDTH), lambda x: model(x).pow(2).mean(), batch_dim=1)


def a_sequence_first() -> World:
    """Time comes first, and the guard is not told: it would cut along time."""
    model = nn.LSTM(WIDTH, 4)
    return world(model, inputs(6, 3, WIDTH), lambda x: model(x)[0].pow(2).mean())
