"""Reinforcement learning, metric learning and other kinds: what each of them does to the items of a batch."""

import math
import random
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from tests.training.guard.idioms.expected import Expected
from tests.training.guard.idioms.idiom import ITEMS, STEPS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World

HALF, TIMES = ITEMS // 2, 5

EXPECTED: dict[str, Expected] = {
    "actor_critic_with_normalised_returns": "coupled",  # returns are normalised over all items and times
    "ppo_over_valid_steps": "weighted",  # by the number of valid steps; advantages were normalised before
    "soft_actor_critic": "coupled",  # target networks move with each call; and actions are drawn
    "deep_q_weights_over_their_maximum": "weighted",  # by the number of items times the part's largest weight
    "temporal_differences_to_a_priority_list": "coupled",  # weights come of priorities that a part has changed
    "arcface": "parts",
    "proxy_anchor": "coupled",  # a logarithm of a sum over the batch's items, for each class
    "prototypes_with_ways_as_rows": "coupled",  # rows are classes, which compete
    "swapped_assignments_with_sinkhorn": "coupled",  # assignments are equal parts of the batch
    "cox_partial_likelihood": "coupled",  # each item is compared with all that live longer
    "listnet_by_query": "coupled",  # a softmax over rows of one query, which no cut in the middle leaves whole
    "quantile_regression": "parts",
    "mixture_density_over_valid_steps": "weighted",  # by the number of valid steps
    "normalising_flow": "parts",
    "energy_with_langevin": "coupled",  # samples are kept for the next call; and noise is drawn
    "wasserstein_critic": "random",  # noise, and a place between real and made, for each item
    "physics_informed": "parts",
    "graphs_with_a_batch_vector": "coupled",  # rows are nodes and edges, and no items
    "matrix_factorisation_with_gramian": "parts",  # the Gramian is that of all things, and not of the batch's
    "summed_with_a_proximal_term": "coupled",  # losses are a sum, and the proximal term would count once per part
    "meta_learning_by_tasks": "parts",  # each task has an inner step of its own
    "per_sample_clipping": "parts",
    "deep_supervision_with_ignored_pixels": "coupled",  # each scale would need weights of its own
    "kalman_filter_along_items": "coupled",  # rows are times
}


def _uneven(*sizes: int, factor: float = 3.0) -> list[torch.Tensor]:
    """Inputs of each step, of which the second half is larger."""
    made = inputs(*sizes)
    for one in made:
        one[HALF:] *= factor
    return made


# ---- reinforcement learning


def _rollouts() -> list[dict[str, torch.Tensor]]:
    """Rows are environments, with several times each."""
    return [
        {
            "seen": x,
            "action": torch.randint(0, 4, (ITEMS, TIMES)),
            "reward": x[..., 0] + torch.randn(ITEMS, TIMES),
            "done": (torch.rand(ITEMS, TIMES) < 0.2) * 1.0,
        }
        for x in _uneven(ITEMS, TIMES, WIDTH, factor=2.0)
    ]


def _actor_critic() -> nn.ModuleDict:
    return nn.ModuleDict({"body": net(out=5), "actor": nn.Linear(5, 4), "critic": nn.Linear(5, 1)})


def _acted(model: nn.ModuleDict, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How likely the actions were, the entropy, and the values."""
    body = torch.tanh(model["body"](batch["seen"]))
    likely = model["actor"](body).to(torch.get_default_dtype()).log_softmax(-1)
    taken = likely.gather(-1, batch["action"][..., None])[..., 0]
    values = model["critic"](body)[..., 0].to(torch.get_default_dtype())
    return taken, -(likely.exp() * likely).sum(-1), values


def actor_critic_with_normalised_returns() -> World:
    """A2C: returns are summed up from the end, bootstrapped with the critic, and normalised."""
    model = _actor_critic()

    def loss_of(batch: Any) -> torch.Tensor:
        taken, entropy, values = _acted(model, batch)
        ahead, returns = values[:, -1].detach(), []
        for time in reversed(range(TIMES)):
            ahead = batch["reward"][:, time] + 0.9 * ahead * (1 - batch["done"][:, time])
            returns.insert(0, ahead)
        normalised = torch.stack(returns, 1)
        normalised = (normalised - normalised.mean()) / (normalised.std() + 1e-3)
        advantage = normalised - values.detach()
        return -(taken * advantage).mean() + 0.5 * F.mse_loss(values, normalised) - 0.01 * entropy.mean()

    return world(model, _rollouts(), loss_of)


def ppo_over_valid_steps() -> World:
    """Recurrent PPO: rollouts are padded, and every term is a mean over the valid steps, chosen by the mask."""
    model = _actor_critic()
    lengths = torch.tensor([1, 2, 1, 1, 5, 4, 5, 5])
    batches = _rollouts()
    for batch in batches:
        batch["mask"] = torch.arange(TIMES) < lengths[:, None]
        batch["old"] = -1.4 + 0.2 * torch.randn(ITEMS, TIMES)
        batch["before"], batch["returns"] = torch.randn(2, ITEMS, TIMES)
        advantage = batch["returns"] - batch["before"]
        batch["advantage"] = (advantage - advantage.mean()) / advantage.std()

    def loss_of(batch: Any) -> torch.Tensor:
        taken, entropy, values = _acted(model, batch)
        mask, advantage, before = batch["mask"], batch["advantage"], batch["before"]
        ratio = (taken - batch["old"]).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        near = before + (values - before).clamp(-0.2, 0.2)
        wrong = torch.max((values - batch["returns"]).pow(2), (near - batch["returns"]).pow(2))
        return -gain[mask].mean() + 0.5 * wrong[mask].mean() - 0.01 * entropy[mask].mean()

    return world(model, batches, loss_of)


def _transitions(*, continuous: bool = False) -> list[dict[str, torch.Tensor]]:
    return [
        {
            "seen": x,
            "action": torch.rand(ITEMS, 2) * 2 - 1 if continuous else torch.randint(0, 4, (ITEMS,)),
            "reward": x[:, 0] + torch.randn(ITEMS),
            "next": x + torch.randn(ITEMS, WIDTH),
            "done": (torch.rand(ITEMS) < 0.2) * 1.0,
        }
        for x in _uneven()
    ]


def _drawn(actor: nn.Module, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions of a squashed normal distribution, and how likely they are."""
    mean, spread = actor(seen).to(torch.get_default_dtype()).chunk(2, -1)
    spread, noise = spread.clamp(-3, 1), torch.randn_like(mean)
    raw = mean + noise * spread.exp()
    likely = -noise.pow(2) / 2 - spread - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
    return raw.tanh(), likely.sum(-1)


def soft_actor_critic() -> World:
    """Two critics, an actor and a temperature in one loss, and target networks that follow at its end."""
    critics = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH + 2, 5), nn.Tanh(), nn.Linear(5, 1)) for _ in range(2)])
    targets = frozen(nn.ModuleList([nn.Sequential(nn.Linear(WIDTH + 2, 5), nn.Tanh(), nn.Linear(5, 1)) for _ in "ab"]))
    targets.load_state_dict(critics.state_dict())
    model = nn.ModuleDict({"actor": net(), "critics": critics, "targets": targets})
    model.register_parameter("temperature", nn.Parameter(torch.tensor(-1.0)))

    def judged(judges: Any, seen: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        both = torch.cat([seen, action], -1)
        return [judge(both)[:, 0].to(torch.get_default_dtype()) for judge in judges]

    def of_the_critics(batch: Any, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            action, likely = _drawn(model["actor"], batch["next"])
            value = torch.min(*judged(targets, batch["next"], action)) - weight * likely
            goal = batch["reward"] + 0.9 * (1 - batch["done"]) * value
        return sum((F.mse_loss(one, goal) for one in judged(critics, batch["seen"], batch["action"])), torch.zeros(()))

    def of_the_actor(batch: Any, weight: torch.Tensor) -> torch.Tensor:
        action, likely = _drawn(model["actor"], batch["seen"])
        still = [
            lambda both, one=one: functional_call(one, {k: v.detach() for k, v in one.named_parameters()}, (both,))
            for one in critics
        ]
        loss = (weight * likely - torch.min(*judged(still, batch["seen"], action))).mean()
        return loss - (model.temperature * (likely.detach() - 2)).mean()

    def loss_of(batch: Any) -> torch.Tensor:
        weight = model.temperature.detach().exp()
        loss = of_the_critics(batch, weight) + of_the_actor(batch, weight)
        with torch.no_grad():
            for theirs, ours in zip(targets.parameters(), critics.parameters(), strict=True):
                theirs.mul_(0.8).add_(ours, alpha=0.2)
        return loss

    return world(model, _transitions(continuous=True), loss_of, make=lambda p: torch.optim.Adam(p, lr=0.01))


def deep_q_weights_over_their_maximum() -> World:
    """Double Q learning from prioritised replay: importance weights are divided by the largest of the batch."""
    model = nn.ModuleDict({"net": net(), "target": frozen(net())})
    batches = _transitions()
    for batch in batches:
        batch["weight"] = torch.rand(ITEMS) / 4 + torch.arange(ITEMS) / ITEMS

    def loss_of(batch: Any) -> torch.Tensor:
        values = model["net"](batch["seen"]).gather(1, batch["action"][:, None])[:, 0].to(torch.get_default_dtype())
        with torch.no_grad():
            best = model["net"](batch["next"]).argmax(1, keepdim=True)
            ahead = model["target"](batch["next"]).gather(1, best)[:, 0]
            goal = batch["reward"] + 0.9 * (1 - batch["done"]) * ahead.to(values.dtype)
        weight = batch["weight"] / batch["weight"].max()
        return (weight * F.smooth_l1_loss(values, goal, reduction="none")).mean()

    made = world(model, batches, loss_of)

    def begin(number: int) -> None:
        if number % 2 == 0:
            model["target"].load_state_dict(model["net"].state_dict())

    made.begin = begin
    return made


class Replay:
    """Priorities of transitions, as numbers in a list."""

    def __init__(self, size: int) -> None:
        self.priorities = [1.0] * size

    def weights(self, places: list[int]) -> torch.Tensor:
        total = sum(self.priorities)
        return torch.tensor([(len(self.priorities) * self.priorities[place] / total) ** -0.8 for place in places])

    def update(self, places: list[int], errors: list[float]) -> None:
        for place, error in zip(places, errors, strict=True):
            self.priorities[place] = abs(error) + 0.01


def temporal_differences_to_a_priority_list() -> World:
    """Weights are made of priorities, and errors become the priorities of the next call."""
    model, replay = net(), Replay(12)
    batches = _transitions()
    for number, batch in enumerate(batches):
        batch["reward"] *= 1 + 2 * number
        batch["place"] = torch.randperm(12)[:ITEMS]

    def loss_of(batch: Any) -> torch.Tensor:
        places = batch["place"].tolist()
        values = model(batch["seen"]).to(torch.get_default_dtype()).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            ahead = model(batch["next"]).to(values.dtype).amax(1)
        errors = batch["reward"] + 0.9 * (1 - batch["done"]) * ahead - values
        loss = (replay.weights(places) * errors.pow(2)).mean()
        replay.update(places, errors.tolist())
        return loss

    return world(model, batches, loss_of)


# ---- metric learning


def arcface() -> World:
    """An angle is added to that between an item and its class."""
    model = net()
    model.register_parameter("classes", nn.Parameter(torch.randn(7, 4)))

    def loss_of(batch: Any) -> torch.Tensor:
        cosine = F.linear(F.normalize(model(batch["x"])), F.normalize(model.classes)).to(torch.get_default_dtype())
        sine = (1 - cosine.pow(2)).clamp(min=0.01).sqrt()
        moved = cosine * math.cos(0.3) - sine * math.sin(0.3)
        moved = torch.where(cosine > -math.cos(0.3), moved, cosine - 0.3 * math.sin(0.3))
        is_own = F.one_hot(batch["y"], 7).bool()
        return F.cross_entropy(8 * torch.where(is_own, moved, cosine), batch["y"])

    return world(model, [{"x": x, "y": torch.randint(0, 7, (ITEMS,))} for x in _uneven()], loss_of)


def proxy_anchor() -> World:
    """A proxy of each class pulls its items and pushes the others; the mean is over the proxies that the batch has."""
    model = net()
    model.register_parameter("proxies", nn.Parameter(torch.randn(5, 4)))
    model.register_buffer("identity", torch.eye(5))

    def loss_of(batch: Any) -> torch.Tensor:
        cosine = F.linear(F.normalize(model(batch["x"])), F.normalize(model.proxies)).to(torch.get_default_dtype())
        own = model.identity[batch["y"]]
        pulled = (torch.exp(-4 * (cosine - 0.1)) * own).sum(0)
        pushed = (torch.exp(4 * (cosine + 0.1)) * (1 - own)).sum(0)
        return pulled.log1p().sum() / (own.sum(0) > 0).sum() + pushed.log1p().sum() / len(model.proxies)

    batches = [{"x": x, "y": torch.tensor([0, 0, 1, 1, 1, 2, 4, 4])} for x in _uneven()]
    return world(model, batches, loss_of)


def prototypes_with_ways_as_rows() -> World:
    """An episode as a batch: each row has shots and queries of one class."""
    model = net()
    batches = [{"shots": torch.randn(ITEMS, 3, WIDTH), "queries": torch.randn(ITEMS, 2, WIDTH)} for _ in range(STEPS)]
    for batch in batches:
        for one in batch.values():
            one += torch.arange(ITEMS)[:, None, None] / 2

    def loss_of(batch: Any) -> torch.Tensor:
        prototypes = model(batch["shots"]).mean(1)
        queries = model(batch["queries"]).flatten(0, 1)
        far = (queries[:, None] - prototypes).pow(2).sum(-1)
        return F.cross_entropy(-far, torch.arange(len(prototypes)).repeat_interleave(batch["queries"].size(1)))

    return world(model, batches, loss_of)


@torch.no_grad()
def _assigned(scores: torch.Tensor) -> torch.Tensor:
    """Sinkhorn's steps: each prototype gets an equal part of the batch."""
    shares = (scores / 0.2).exp().T
    for _ in range(3):
        shares = shares / shares.sum(1, keepdim=True) / shares.size(0)
        shares = shares / shares.sum(0, keepdim=True) / shares.size(1)
    return (shares * shares.size(1)).T


def swapped_assignments_with_sinkhorn() -> World:
    """SwAV: each view foretells the other one's assignment; forward sets the prototypes to length one."""
    model = nn.ModuleDict({"net": net(), "prototypes": nn.Linear(4, 3, bias=False)})

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            weight = model["prototypes"].weight
            weight.copy_(F.normalize(weight.clone(), dim=1))
        one, other = (
            model["prototypes"](F.normalize(model["net"](batch[name]), dim=1)).to(torch.get_default_dtype())
            for name in ("one", "other")
        )
        swapped = [(_assigned(one), other), (_assigned(other), one)]
        return -sum(((q * (p / 0.1).log_softmax(1)).sum(1).mean() for q, p in swapped), torch.zeros(())) / 2

    return world(model, [{"one": x, "other": x + torch.randn(ITEMS, WIDTH) / 2} for x in _uneven()], loss_of)


# ---- rankings and distributions


def cox_partial_likelihood() -> World:
    """Survival: an event is compared with all that are still at risk, and some are censored."""
    model = net(out=1)
    batches = [
        {"x": x, "time": torch.rand(ITEMS) * 9, "event": torch.tensor([1.0, 0, 1, 1, 0, 1, 0, 0])} for x in _uneven()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        order = batch["time"].argsort(descending=True)
        risk, event = model(batch["x"])[:, 0].to(torch.get_default_dtype())[order], batch["event"][order]
        return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()

    return world(model, batches, loss_of)


def listnet_by_query() -> World:
    """Documents of several queries in one batch, which a column tells apart."""
    model = net(out=1)
    query = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    batches = [{"x": x, "query": query, "worth": torch.randint(0, 4, (ITEMS,)) * 1.0} for x in _uneven()]

    def loss_of(batch: Any) -> torch.Tensor:
        scores, losses = model(batch["x"])[:, 0].to(torch.get_default_dtype()), []
        for one in batch["query"].unique():
            rows = batch["query"] == one
            losses.append(-(batch["worth"][rows].softmax(0) * scores[rows].log_softmax(0)).sum())
        return torch.stack(losses).mean()

    return world(model, batches, loss_of)


def quantile_regression() -> World:
    """Several quantiles at once, and a penalty where they cross."""
    model = net(out=3)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch["x"])
        wrong = batch["y"][:, None] - out
        pinball = torch.maximum((quantiles - 1) * wrong, quantiles * wrong).mean(0).sum()
        return pinball + 0.5 * (out[:, :-1] - out[:, 1:]).relu().mean()

    return world(model, [{"x": x, "y": x.sum(1) + torch.randn(ITEMS)} for x in _uneven()], loss_of)


def mixture_density_over_valid_steps() -> World:
    """Strokes of different lengths: a mixture of normal distributions for each step, and a mean over the valid ones."""
    model = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 9))
    lengths = torch.tensor([5, 4, 5, 5, 1, 2, 1, 1])
    batches = [
        {"x": x, "y": x[..., 0] + torch.randn(ITEMS, TIMES), "valid": torch.arange(TIMES) < lengths[:, None]}
        for x in _uneven(ITEMS, TIMES, WIDTH)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        weights, means, spreads = model(batch["x"]).to(torch.get_default_dtype()).chunk(3, -1)
        spreads = spreads.clamp(-2, 2)
        each = -((batch["y"][..., None] - means) * (-spreads).exp()).pow(2) / 2 - spreads
        likely = torch.logsumexp(weights.log_softmax(-1) + each, -1)
        return -likely[batch["valid"]].mean()

    return world(model, batches, loss_of)


class Coupling(nn.Module):
    """Half of the features are scaled and moved by what the other half says."""

    def __init__(self) -> None:
        super().__init__()
        half = WIDTH // 2
        self.net = nn.Sequential(nn.Linear(half, 5), nn.Tanh(), nn.Linear(5, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = x.chunk(2, 1)
        scale, move = self.net(one).to(x.dtype).chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([other * scale.exp() + move, one], 1), scale.sum(1)


def normalising_flow() -> World:
    """Bits per dimension, of a base distribution that is normal."""
    model = nn.ModuleList([Coupling() for _ in range(3)])

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        volume = torch.zeros(len(x))
        for coupling in model:
            x, more = coupling(x)
            volume = volume + more
        likely = -(x.pow(2) + math.log(2 * math.pi)).sum(1) / 2 + volume
        return -likely.mean() / (WIDTH * math.log(2))

    return world(model, _uneven(), loss_of)


def energy_with_langevin() -> World:
    """Contrastive divergence, from samples that are kept in a list."""
    model = net(out=1)
    kept = [torch.randn(WIDTH) for _ in range(20)]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        places = random.sample(range(len(kept)), len(x))
        made = torch.stack([kept[place] for place in places])
        for _ in range(4):
            made.requires_grad_()
            (slope,) = torch.autograd.grad(model(made).sum(), made)
            made = (made - 0.5 * slope + 0.1 * torch.randn_like(made)).detach()
        for place, one in zip(places, made, strict=True):
            kept[place] = one
        real, fake = model(x), model(made)
        return real.mean() - fake.mean() + 0.1 * (real.pow(2) + fake.pow(2)).mean()

    return world(model, _uneven(), loss_of)


# ---- derivatives inside


def wasserstein_critic() -> World:
    """A critic's step: fakes from noise, and a penalty of slopes between real and fake."""
    model, generator = net(out=1), frozen(nn.Linear(3, WIDTH))

    def loss_of(real: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 3)).to(real.dtype)
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        return model(fake).mean() - model(real).mean() + 10 * (slope.norm(2, dim=1) - 1).pow(2).mean()

    return world(model, _uneven(), loss_of)


def physics_informed() -> World:
    """The heat equation inside, and values at the edge and at the beginning; the batch's points get gradients."""
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [
        {"inside": torch.rand(ITEMS, 2), "edge": torch.rand(ITEMS, 2).round(), "begin": torch.rand(ITEMS, 1)}
        for _ in range(STEPS)
    ]
    for batch in batches:
        for one in batch.values():
            one[HALF:] *= 3

    def loss_of(batch: Any) -> torch.Tensor:
        inside = batch["inside"].requires_grad_()
        (slope,) = torch.autograd.grad(model(inside).sum(), inside, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
        begin = model(torch.cat([batch["begin"], torch.zeros_like(batch["begin"])], 1))
        return (
            (slope[:, 1] - 0.5 * curve[:, 0]).pow(2).mean()
            + model(batch["edge"]).pow(2).mean()
            + F.mse_loss(begin, (math.pi * batch["begin"]).sin())
        )

    return world(model, batches, loss_of)


def meta_learning_by_tasks() -> World:
    """Each row is a task, with examples for an inner step and others for the loss after it."""
    model = net(out=1)
    batches = [{"shots": x, "queries": torch.randn(ITEMS, 3, WIDTH)} for x in _uneven(ITEMS, 4, WIDTH, factor=2.0)]
    for batch in batches:
        batch["slope"] = torch.randn(ITEMS, WIDTH)

    def after(task: Any, names: dict[str, torch.Tensor]) -> torch.Tensor:
        shots, queries, slope = task
        loss = F.mse_loss(functional_call(model, names, (shots,))[:, 0], shots @ slope)
        steps = torch.autograd.grad(loss, list(names.values()), create_graph=True)
        moved = {name: one - 0.05 * step for (name, one), step in zip(names.items(), steps, strict=True)}
        return F.mse_loss(functional_call(model, moved, (queries,))[:, 0], queries @ slope)

    def loss_of(batch: Any) -> torch.Tensor:
        tasks = list(zip(batch["shots"], batch["queries"], batch["slope"], strict=True))
        names = dict(model.named_parameters())
        return torch.stack([after(task, names) for task in tasks]).mean()

    return world(model, batches, loss_of)


def per_sample_clipping() -> World:
    """Private training without its noise: each item's gradient is cut to a length, and their mean is the loss's."""
    model = net()

    def of_one(names: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(model, names, (x[None],))[0], y)

    def loss_of(batch: Any) -> torch.Tensor:
        names = {name: one.detach() for name, one in model.named_parameters()}
        each = vmap(grad(of_one), in_dims=(None, 0, 0))(names, batch["x"], batch["y"])
        lengths = torch.stack([one.flatten(1).pow(2).sum(1) for one in each.values()]).sum(0).sqrt()
        factors = (0.7 / (lengths + 0.001)).clamp(max=1.0)
        cut = {name: torch.einsum("n,n...->...", factors, one) / len(factors) for name, one in each.items()}
        return torch.stack([(one * cut[name]).sum() for name, one in model.named_parameters()]).sum()

    return world(model, [{"x": x, "y": x[:, :4] + torch.randn(ITEMS, 4)} for x in _uneven()], loss_of)


# ---- structures


def graphs_with_a_batch_vector() -> World:
    """Graphs of different sizes in one, as PyG collates them, in a dict: `batch` has the graph of each node."""
    model = nn.ModuleDict({"one": nn.Linear(WIDTH, 5), "other": nn.Linear(5, 4)})
    sizes = torch.tensor([1, 2, 1, 2, 3, 4, 3, 4])
    member = torch.arange(ITEMS).repeat_interleave(sizes)
    pairs = torch.cartesian_prod(torch.arange(len(member)), torch.arange(len(member)))
    edges = pairs[(member[pairs[:, 0]] == member[pairs[:, 1]]) & (pairs[:, 0] != pairs[:, 1])].T
    batches = [
        {
            "x": torch.randn(len(member), WIDTH) * (1 + 2 * (member[:, None] >= HALF)),
            "edge_index": edges,
            "batch": member,
            "y": torch.randint(0, 4, (ITEMS,)),
        }
        for _ in range(STEPS)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        source, target = batch["edge_index"]
        hidden = model["one"](batch["x"]).tanh()
        hidden = hidden + torch.zeros_like(hidden).index_add(0, target, hidden[source])
        out = model["other"](hidden).to(torch.get_default_dtype())
        graphs = int(batch["batch"].max()) + 1
        counts = torch.bincount(batch["batch"], minlength=graphs)[:, None]
        pooled = torch.zeros(graphs, 4).index_add(0, batch["batch"], out) / counts
        return F.cross_entropy(pooled, batch["y"])

    return world(model, batches, loss_of)


def matrix_factorisation_with_gramian() -> World:
    """Implicit feedback: what a user has not taken counts as a zero, summed over all things by their Gramian."""
    model = nn.ModuleDict({"users": nn.Embedding(10, 4), "things": nn.Embedding(12, 4)})
    with torch.no_grad():
        model["users"].weight[5:] *= 2
    batches = [
        {
            "user": torch.cat([torch.randint(0, 5, (HALF,)), torch.randint(5, 10, (HALF,))]),
            "thing": torch.randint(0, 12, (ITEMS,)),
        }
        for _ in range(STEPS)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        user, thing = model["users"](batch["user"]), model["things"](batch["thing"])
        gramian = model["things"].weight.T @ model["things"].weight
        taken = (user * thing).sum(1)
        left = ((user @ gramian) * user).sum(1)
        small = user.pow(2).sum(1) + thing.pow(2).sum(1)
        return ((1 - taken).pow(2) + 0.05 * left + 0.01 * small).mean()

    return world(model, batches, loss_of)


def summed_with_a_proximal_term() -> World:
    """Federated learning: a client's weights have gone away from the server's, which pull them back."""
    model, server = net(), [one.detach().clone() for one in net().parameters()]

    def loss_of(batch: Any) -> torch.Tensor:
        pull = sum((one - theirs).pow(2).sum() for one, theirs in zip(model.parameters(), server, strict=True))
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum") + 0.5 * pull

    return world(
        model,
        [{"x": x, "y": torch.randint(0, 4, (ITEMS,))} for x in _uneven()],
        loss_of,
        make=lambda p: torch.optim.SGD(p, lr=0.01),
    )


def deep_supervision_with_ignored_pixels() -> World:
    """A loss at each of three scales; some pixels have no label, and not the same share of them at each scale."""
    model = nn.ModuleDict({"body": nn.Conv2d(2, 4, 3, padding=1)})
    model["heads"] = nn.ModuleList([nn.Conv2d(4, 3, 1) for _ in range(3)])
    batches = []
    for x in _uneven(ITEMS, 2, 8, 8):
        labels = torch.randint(0, 3, (ITEMS, 8, 8))
        sparse = torch.full_like(labels[:HALF], -100)
        sparse[:, ::2, ::2] = labels[:HALF, ::2, ::2]
        batches.append({"x": x, "y": torch.cat([sparse, labels[HALF:]])})

    def loss_of(batch: Any) -> torch.Tensor:
        features, losses = model["body"](batch["x"]).tanh(), []
        for scale, head in enumerate(model["heads"]):
            out = head(F.avg_pool2d(features, 2**scale)).to(torch.get_default_dtype())
            losses.append(F.cross_entropy(out, batch["y"][:, :: 2**scale, :: 2**scale]) / 2**scale)
        return torch.stack(losses).sum()

    return world(model, batches, loss_of)


def kalman_filter_along_items() -> World:
    """Rows are times: what is foretold of each comes from all rows before it."""
    model = nn.ModuleDict({"encode": net(out=3)})
    for name, value in (("stay", 0.95), ("drift", -2.0), ("noise", 0.5)):
        model.register_parameter(name, nn.Parameter(torch.full((3,), value)))

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        mean, spread, losses = torch.zeros(3), torch.ones(3), []
        for seen in model["encode"](x).to(torch.get_default_dtype()):
            mean, spread = mean * model.stay, spread * model.stay.pow(2) + model.drift.exp()
            total = spread + model.noise.exp()
            wrong, gain = seen - mean, spread / total
            losses.append((wrong.pow(2) / total + total.log()).mean())
            mean, spread = mean + gain * wrong, spread * (1 - gain)
        return torch.stack(losses).mean()

    batches = _uneven(factor=2.0)
    for one in batches:
        one += torch.arange(ITEMS)[:, None] / 3
    return world(model, batches, loss_of)
