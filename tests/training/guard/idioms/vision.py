"""Pictures: detection, segmentation, depth, flow, metric learning, and models that generate."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from tests.training.guard.idioms.expected import Expected
from tests.training.guard.idioms.idiom import ITEMS, STEPS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World

EXPECTED: dict[str, Expected] = {
    "retinanet_positives_per_image": "parts",
    "dice_per_image": "parts",
    "multi_crop_distillation": "parts",
    "edm_sum_over_a_constant": "parts",  # a sum, over a number that does not depend on the batch
    "r1_every_second_step": "parts",  # which step it is is set before it
    "perceptual_and_gram": "parts",
    "raft_sequence_loss": "parts",  # what is not valid counts as zero in the mean
    "focal_by_positives": "weighted",  # by cells with an object
    "class_weighted_pixels": "weighted",  # by the weights of the classes of pixels
    "keypoints_visible_mean": "weighted",  # by visible points
    "stochastic_depth": "random",
    "nerf_stratified_rays": "random",
    "detr_set_criterion": "coupled",  # a weighted mean over queries and a mean over boxes
    "yolo_targets_with_image_column": "coupled",  # rows point to pictures; means over targets and over cells
    "dice_over_the_batch": "coupled",  # a quotient of two sums
    "ohem_over_the_batch": "coupled",  # the worst pixels of all
    "mixup_by_flip": "coupled",  # each item is mixed with one from the other end
    "supcon": "coupled",
    "swav_sinkhorn_multi_crop": "coupled",  # targets are balanced over the batch
    "vae_free_bits_over_the_batch": "coupled",  # the batch's mean is clamped
    "vqgan_adaptive_weight": "coupled",  # a term's weight is a quotient of gradients
    "silog_depth": "coupled",  # a spread over all pixels, and its root
    "edges_balanced_over_the_batch": "coupled",  # how much a pixel counts depends on the number of edges
    "loss_aware_timesteps": "coupled",  # the losses of a call change what the next one draws
}
IGNORED = 255


def _scale(large: float = 2.0, small: float = 0.5) -> torch.Tensor:
    """A factor for each item, larger in the first half."""
    return torch.where(torch.arange(ITEMS) < ITEMS // 2, large, small)


def _pictures(side: int = 6) -> list[torch.Tensor]:
    """Pictures for each step."""
    return [one * _scale()[:, None, None, None] for one in inputs(ITEMS, 3, side, side)]


def _each_pixel(out: int) -> nn.Sequential:
    """A net for pictures of any size."""
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, out, 1))


def _exact(x: torch.Tensor) -> torch.Tensor:
    """No half precision."""
    return x.to(torch.get_default_dtype())


def _focal(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The focal loss of each logit."""
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    right = logits.sigmoid() * wanted + (1 - logits.sigmoid()) * (1 - wanted)
    return (0.25 * wanted + 0.75 * (1 - wanted)) * (1 - right).pow(2) * each


# ---- a mean or a sum over items


def retinanet_positives_per_image() -> World:
    """Lists of pictures of different sizes and of dicts with boxes; each picture is divided by its own positives."""
    model = _each_pixel(6)
    sizes = [(8, 7), (7, 8), (8, 8), (7, 7), (3, 4), (4, 4), (4, 3), (3, 3)]
    counts = (3, 2, 3, 2, 1, 0, 1, 1)

    def boxes(height: int, width: int, count: int) -> dict[str, torch.Tensor]:
        starts = (torch.rand(count, 2) * torch.tensor([height - 2, width - 2])).floor()
        return {"boxes": torch.cat([starts, starts + 2], 1), "labels": torch.randint(2, (count,))}

    def of_one(image: torch.Tensor, target: dict[str, torch.Tensor]) -> torch.Tensor:
        out = _exact(model(image[None])[0])
        logits, corners = out[:2].flatten(1).T, out[2:].flatten(1).T
        cells = torch.cartesian_prod(torch.arange(image.size(1)), torch.arange(image.size(2)))
        within = torch.zeros(len(cells), 1, dtype=torch.bool)
        if len(target["boxes"]):
            low, high = target["boxes"].split(2, 1)
            within = ((cells[:, None] >= low) & (cells[:, None] < high)).all(-1)
        positive, best = within.any(1), within.to(torch.uint8).argmax(1)
        wanted = torch.zeros_like(logits)
        wanted[positive, target["labels"][best[positive]]] = 1
        distance = F.smooth_l1_loss(corners[positive], target["boxes"][best[positive]], reduction="sum")
        return (_focal(logits, wanted).sum() + 0.2 * distance) / max(1, int(positive.sum()))

    def loss_of(batch: Any) -> torch.Tensor:
        images, targets = batch
        return torch.stack([of_one(*one) for one in zip(images, targets, strict=True)]).mean()

    batches = [
        (
            [torch.randn(3, *size) for size in sizes],
            [boxes(*size, count) for size, count in zip(sizes, counts, strict=True)],
        )
        for _ in range(STEPS)
    ]
    return world(model, batches, loss_of)


def _masks(shares: Sequence[float]) -> torch.Tensor:
    """A mask for each picture, of which a share is set."""
    return (torch.rand(ITEMS, 6, 6) < torch.tensor(shares)[:, None, None]) * 1.0


def dice_per_image() -> World:
    """A mean over pixels, and an overlap with each picture's mask."""
    model = _each_pixel(1)
    batches = [{"image": x, "mask": _masks([0.7] * 4 + [0.1] * 4)} for x in _pictures()]

    def loss_of(batch: Any) -> torch.Tensor:
        logits, mask = _exact(model(batch["image"]))[:, 0], batch["mask"]
        found = logits.sigmoid()
        overlap = (2 * (found * mask).sum((1, 2)) + 1) / (found.sum((1, 2)) + mask.sum((1, 2)) + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + (1 - overlap).mean()

    return world(model, batches, loss_of)


def multi_crop_distillation() -> World:
    """A list of two large and two small crops of each picture; a frozen teacher sees the large ones."""
    model, teacher = _each_pixel(4), frozen(_each_pixel(4))

    def loss_of(crops: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            theirs = _exact(teacher(torch.cat(crops[:2])).mean((2, 3))).div(0.2).softmax(-1).chunk(2)
        ours = [
            logits.log_softmax(-1)
            for group in (crops[:2], crops[2:])
            for logits in _exact(model(torch.cat(group)).mean((2, 3))).div(0.4).chunk(2)
        ]
        pairs = [(one, other) for i, one in enumerate(theirs) for j, other in enumerate(ours) if i != j]
        return torch.stack([-(one * other).sum(-1).mean() for one, other in pairs]).mean()

    crops = [_pictures(6), _pictures(6), _pictures(3), _pictures(3)]
    return world(model, [list(of_step) for of_step in zip(*crops, strict=True)], loss_of)


def edm_sum_over_a_constant() -> World:
    """A sum over pixels, over what a batch is configured to have; min-SNR weights, and noise that is in the batch."""
    model = nn.Sequential(nn.Linear(WIDTH + 1, 7), nn.Tanh(), nn.Linear(7, WIDTH))
    batches = [
        {"x": x * _scale()[:, None], "noise": torch.randn(ITEMS, WIDTH), "sigma": 0.1 + torch.rand(ITEMS, 1) * 2}
        for x in inputs()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        sigma = batch["sigma"]
        ratio = sigma.pow(-2)
        found = model(torch.cat([batch["x"] + sigma * batch["noise"], sigma.log() / 4], 1))
        each = ratio.clamp(max=5) / ratio * (found - batch["noise"]).pow(2)
        return each.sum().mul(1 / ITEMS)

    return world(model, batches, loss_of)


def r1_every_second_step() -> World:
    """A judge's step; in every second one, the slope at real pictures is punished, twice as much."""
    model, step = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 1)), [0]
    pictures = _pictures(4)
    batches = [{"real": x, "made": made} for x, made in zip(pictures, inputs(ITEMS, 3, 4, 4), strict=True)]

    def loss_of(batch: Any) -> torch.Tensor:
        real = batch["real"].detach().requires_grad_(step[0] % 2 == 0)
        found = _exact(model(real))
        loss = F.softplus(_exact(model(batch["made"]))).mean() + F.softplus(-found).mean()
        if step[0] % 2 == 0:
            (slope,) = torch.autograd.grad(found.sum(), real, create_graph=True)
            loss = loss + slope.pow(2).sum((1, 2, 3)).mean() * (0.5 / 2 * 2)
        return loss

    def begin(number: int) -> None:
        step[0] = number

    found = world(model, batches, loss_of)
    found.begin = begin
    return found


def perceptual_and_gram() -> World:
    """Features of a frozen net whose norms do not move, and how they go together within each picture."""
    model = _each_pixel(3)
    eye = frozen(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())).eval()
    eye[1].running_mean += 0.1
    batches = [{"x": x, "y": y} for x, y in zip(_pictures(), _pictures(), strict=True)]

    def seen(pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = _exact(eye(pictures)).flatten(2)
        return features, features @ features.mT / features.size(2)

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            features, gram = seen(batch["y"])
        made = model(batch["x"])
        our_features, our_gram = seen(made)
        return F.l1_loss(made, batch["y"]) + F.mse_loss(our_features, features) + F.mse_loss(_exact(our_gram), gram)

    return world(model, batches, loss_of)


def raft_sequence_loss() -> World:
    """Flow that is refined three times, later guesses with more weight; a mean over all pixels, valid or not."""
    model = nn.ModuleDict({"features": nn.Conv2d(6, 4, 3, padding=1), "refine": nn.Conv2d(6, 2, 3, padding=1)})
    batches = [
        {"one": one, "other": other, "flow": 2 * flow, "valid": _masks([0.9] * 4 + [0.2] * 4)}
        for one, other, flow in zip(_pictures(), _pictures(), inputs(ITEMS, 2, 6, 6), strict=True)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        features = torch.tanh(model["features"](torch.cat([batch["one"], batch["other"]], 1)))
        flow, loss = torch.zeros_like(batch["flow"]), torch.zeros(())
        valid = (batch["valid"] > 0.5) & (batch["flow"].norm(dim=1) < 5)
        for number in range(3):
            flow = flow.detach()
            flow = flow + model["refine"](torch.cat([features, flow.to(features.dtype)], 1))
            loss = loss + 0.8 ** (2 - number) * (valid[:, None] * (flow - batch["flow"]).abs()).mean()
        return loss

    return world(model, batches, loss_of)


# ---- a mean over something else


def focal_by_positives() -> World:
    """Classes of all cells and boxes of those with an object, both divided by the objects of the whole batch."""
    model = _each_pixel(2 + 4)
    batches = [
        {"image": x, "object": _masks([0.6] * 4 + [0.06] * 4), "kind": torch.randint(2, (ITEMS, 6, 6)), "box": box}
        for x, box in zip(_pictures(), inputs(ITEMS, 4, 6, 6), strict=True)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        logits, boxes = _exact(model(batch["image"])).split([2, 4], 1)
        wanted = F.one_hot(batch["kind"], 2).movedim(-1, 1) * batch["object"][:, None]
        count = batch["object"].sum().clamp(min=1)
        distance = (boxes - batch["box"]).abs() * batch["object"][:, None]
        return _focal(logits, wanted).sum() / count + distance.sum() / count

    return world(model, batches, loss_of)


def class_weighted_pixels() -> World:
    """Rare classes have more weight, and the mean is over the weights of pixels that are not ignored."""
    model = _each_pixel(3)
    weight = torch.tensor([0.1, 1.0, 6.0])

    def labels() -> torch.Tensor:
        common = (_masks([0.95] * 4 + [0.2] * 4) < 0.5) * torch.randint(1, 3, (ITEMS, 6, 6))
        return common.masked_fill(_masks([0.3] * 8) > 0.5, IGNORED)

    def loss_of(batch: Any) -> torch.Tensor:
        return F.cross_entropy(_exact(model(batch["image"])), batch["labels"], weight=weight, ignore_index=IGNORED)

    return world(model, [{"image": x, "labels": labels()} for x in _pictures()], loss_of)


def keypoints_visible_mean() -> World:
    """Each point is a class of all pixels of its map; the mean over points that are visible, or zero without any."""
    model = _each_pixel(4)
    batches = [
        {
            "image": x,
            "place": torch.randint(36, (ITEMS, 4)),
            "visible": torch.tensor([[True] * 4] * 4 + [[False, True, False, False], [False] * 4] * 2),
        }
        for x in _pictures()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        maps = _exact(model(batch["image"])).flatten(2)
        if not batch["visible"].any():
            return maps.sum() * 0
        return F.cross_entropy(maps[batch["visible"]], batch["place"][batch["visible"]])

    return world(model, batches, loss_of)


# ---- a mean over items, with random numbers


class Block(nn.Module):
    """What is added to a picture is left out for some pictures of the batch."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.inner, self.scale, self.drop = nn.Conv2d(3, 3, 3, padding=1), nn.Parameter(torch.ones(3, 1, 1)), drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.inner(x)) * self.scale
        if self.training:
            kept = torch.empty(len(x), 1, 1, 1).bernoulli_(1 - self.drop)
            out = out * kept / (1 - self.drop)
        return x + out


def stochastic_depth() -> World:
    model = nn.Sequential(Block(0.1), Block(0.3), Block(0.5), nn.Flatten(), nn.Linear(108, 4))
    batches = [{"image": x, "y": torch.randint(4, (ITEMS,))} for x in _pictures()]
    return world(model, batches, lambda b: F.cross_entropy(_exact(model(b["image"])), b["y"]))


def nerf_stratified_rays() -> World:
    """Rays with points at random places, and more of them where the first ones have found something."""
    model = nn.ModuleDict({name: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)) for name in ("few", "all")})
    batches = [
        {"origin": origin, "way": F.normalize(way, dim=1), "color": torch.rand(ITEMS, 3) * _scale(1, 0.2)[:, None]}
        for origin, way in zip(inputs(ITEMS, 3), inputs(ITEMS, 3), strict=True)
    ]

    def rendered(name: str, batch: Any, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = batch["origin"][:, None] + at[..., None] * batch["way"][:, None]
        color, density = _exact(model[name](points)).split([3, 1], -1)
        gaps = torch.cat([at.diff(dim=1), torch.ones_like(at[:, :1])], 1)
        opaque = 1 - (-F.softplus(density[..., 0]) * gaps).exp()
        passed = torch.cat([torch.ones_like(at[:, :1]), (1 - opaque[:, :-1] + 1e-6).cumprod(1)], 1)
        shares = opaque * passed
        return (shares[..., None] * color.sigmoid()).sum(1), shares

    def loss_of(batch: Any) -> torch.Tensor:
        rays = len(batch["origin"])
        at = (torch.arange(6) + torch.rand(rays, 6)) / 6 * 4
        coarse, shares = rendered("few", batch, at)
        total = (shares.detach() + 1e-2).cumsum(1)
        found = torch.searchsorted(total / total[:, -1:], torch.rand(rays, 6)).clamp(max=5)
        more = at.gather(1, found) + 0.1 * torch.rand(rays, 6)
        fine, _ = rendered("all", batch, torch.cat([at, more], 1).sort(1).values)
        return F.mse_loss(coarse, batch["color"]) + F.mse_loss(fine, batch["color"])

    return world(model, batches, loss_of)


# ---- what cannot be divided


def detr_set_criterion() -> World:
    """A dict of boxes for each picture, matched to queries; nothing as a class of small weight, and boxes counted."""
    queries, classes = 4, 2
    model = nn.ModuleDict({"see": _each_pixel(5), "answer": nn.Linear(5, queries * (classes + 1 + 4))})
    weight = torch.tensor([1.0, 1.0, 0.4])

    def targets() -> list[dict[str, torch.Tensor]]:
        counts = (3, 3, 2, 3, 1, 1, 0, 1)
        return [{"boxes": torch.rand(n, 4), "labels": torch.randint(classes, (n,))} for n in counts]

    @torch.no_grad()
    def matched(logits: torch.Tensor, boxes: torch.Tensor, target: dict[str, torch.Tensor]) -> torch.Tensor:
        count = len(target["boxes"])
        cost = torch.cdist(boxes, target["boxes"], p=1) - logits.softmax(-1)[:, target["labels"]]
        ways = torch.tensor(list(itertools.permutations(range(queries), count)), dtype=torch.long)
        return ways[cost[ways, torch.arange(count)].sum(1).argmin()]

    def loss_of(batch: Any) -> torch.Tensor:
        out = _exact(model["answer"](torch.tanh(model["see"](batch["image"]).mean((2, 3)))))
        logits, boxes = out.view(-1, queries, classes + 5).split([classes + 1, 4], -1)
        wanted = torch.full(logits.shape[:2], classes)
        distance = torch.zeros(())
        for number, target in enumerate(batch["targets"]):
            chosen = matched(logits[number], boxes[number].sigmoid(), target)
            wanted[number, chosen] = target["labels"]
            distance = distance + (boxes[number, chosen].sigmoid() - target["boxes"]).abs().sum()
        count = max(1, sum(len(target["boxes"]) for target in batch["targets"]))
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weight=weight) + 2 * distance / count

    return world(model, [{"image": x, "targets": targets()} for x in _pictures()], loss_of)


def yolo_targets_with_image_column() -> World:
    """As many targets as pictures, each with the number of its picture; means over targets and over all cells."""
    model = _each_pixel(3)
    of_picture = torch.tensor([0.0, 0, 0, 1, 2, 3, 5, 7])
    batches = [
        {"images": x, "targets": torch.cat([of_picture[:, None], torch.rand(ITEMS, 4) * 6], 1)} for x in _pictures()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        out = _exact(model(batch["images"]))
        found, sizes, objects = [], [], torch.zeros_like(out[:, 0])
        for number, cells in enumerate(out):
            own = batch["targets"][batch["targets"][:, 0] == number]
            row, column = own[:, 1:3].long().T
            objects[number, row, column] = 1
            found.append(cells[1:, row, column].T)
            sizes.append(own[:, 3:])
        distance = (torch.cat(found) - torch.cat(sizes)).pow(2).mean()
        return distance + F.binary_cross_entropy_with_logits(out[:, 0], objects)

    return world(model, batches, loss_of)


def dice_over_the_batch() -> World:
    """Overlaps of classes, each summed over all pictures."""
    model = _each_pixel(3)
    batches = [
        {"image": x, "labels": (_masks([0.8] * 4 + [0.1] * 4) * torch.randint(1, 3, (ITEMS, 6, 6))).long()}
        for x in _pictures()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        found = _exact(model(batch["image"])).softmax(1)
        wanted = F.one_hot(batch["labels"], 3).movedim(-1, 1).to(found.dtype)
        common = (found * wanted).sum((0, 2, 3))
        return (1 - 2 * common / (found + wanted).sum((0, 2, 3)).clamp(min=1e-3)).mean()

    return world(model, batches, loss_of)


def ohem_over_the_batch() -> World:
    """The mean over the worst eighth of all pixels, or over all that are bad enough if there are more."""
    model = _each_pixel(3)
    batches = [{"image": 2 * x, "labels": torch.randint(3, (ITEMS, 6, 6))} for x in _pictures()]

    def loss_of(batch: Any) -> torch.Tensor:
        each = F.cross_entropy(_exact(model(batch["image"])), batch["labels"], reduction="none").flatten()
        worst = each.sort(descending=True).values
        count = len(worst) // 8
        return worst[worst > 3].mean() if worst[count] > 3 else worst[:count].mean()

    return world(model, batches, loss_of)


def mixup_by_flip() -> World:
    """Each picture and its label are mixed with those from the other end of the batch, by a share of numpy's."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    batches = [{"image": x, "y": torch.randint(4, (ITEMS,))} for x in _pictures()]

    def loss_of(batch: Any) -> torch.Tensor:
        share = numpy.random.beta(2.0, 2.0)
        image = batch["image"] * share + batch["image"].flip(0) * (1 - share)
        wanted = F.one_hot(batch["y"], 4).to(image.dtype)
        wanted = wanted * share + wanted.flip(0) * (1 - share)
        return F.cross_entropy(_exact(model(image)), wanted)

    return world(model, batches, loss_of)


def supcon() -> World:
    """Two views of each item; all views of the same class are positives."""
    model = net()
    batches = [{"views": x, "y": torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])} for x in inputs(ITEMS, 2, WIDTH)]

    def loss_of(batch: Any) -> torch.Tensor:
        found = F.normalize(_exact(model(batch["views"])), dim=-1).transpose(0, 1).flatten(0, 1)
        labels, other = batch["y"].repeat(2), ~torch.eye(len(found), dtype=torch.bool)
        logits = (found @ found.T).to(found.dtype) / 0.3
        likely = logits - logits.masked_fill(~other, float("-inf")).logsumexp(1, keepdim=True)
        same = (labels[:, None] == labels) & other
        return -((likely * same).sum(1) / same.sum(1)).mean()

    return world(model, batches, loss_of)


def swav_sinkhorn_multi_crop() -> World:
    """Crops of two sizes in a list, prototypes that forward normalises, and targets balanced over the batch."""
    model = nn.ModuleDict({"see": _each_pixel(5), "prototypes": nn.Linear(5, 6, bias=False)})

    @torch.no_grad()
    def balanced(scores: torch.Tensor) -> torch.Tensor:
        shares = (scores / 0.05).exp().T
        for _ in range(3):
            shares = shares / shares.sum(1, keepdim=True) / len(shares)
            shares = shares / shares.sum(0, keepdim=True) / shares.size(1)
        return (shares * shares.size(1)).T

    def loss_of(crops: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            model["prototypes"].weight.copy_(F.normalize(model["prototypes"].weight.clone(), dim=1))
        groups = [torch.cat(crops[:2]), torch.cat(crops[2:])]
        found = [F.normalize(_exact(model["see"](group)).mean((2, 3)), dim=1) for group in groups]
        scores = [one for group in found for one in _exact(model["prototypes"](group)).chunk(2)]
        loss = torch.zeros(())
        for number in range(2):
            target = balanced(scores[number])
            others = [one for place, one in enumerate(scores) if place != number]
            loss = loss - sum((target * (one / 0.3).log_softmax(1)).sum(1).mean() for one in others) / 3
        return loss / 2

    offsets = torch.randn(ITEMS, 3, 1, 1) + _scale(1, -0.5)[:, None, None, None]
    crops = [_pictures(6), _pictures(6), _pictures(3), _pictures(3)]
    return world(model, [[one + offsets for one in of_step] for of_step in zip(*crops, strict=True)], loss_of)


def vae_free_bits_over_the_batch() -> World:
    """The divergence of each latent dimension, as a mean over the batch, is free below a bound."""
    model = nn.ModuleDict({"encode": nn.Linear(WIDTH, 8), "decode": nn.Linear(4, WIDTH)})
    batches = [{"x": x * _scale(1, 0.1)[:, None], "noise": torch.randn(ITEMS, 4)} for x in inputs()]

    def loss_of(batch: Any) -> torch.Tensor:
        mean, spread = _exact(model["encode"](batch["x"])).chunk(2, -1)
        found = model["decode"](mean + batch["noise"] * (spread / 2).exp())
        divergence = 0.5 * (mean.pow(2) + spread.exp() - spread - 1).mean(0)
        return F.mse_loss(_exact(found), batch["x"]) + 2 * divergence.clamp(min=0.28).sum()

    return world(model, batches, loss_of)


def vqgan_adaptive_weight() -> World:
    """A codebook that is learned, and a judge whose say is a quotient of gradients at the last layer."""
    model = nn.ModuleDict(
        {"encode": net(), "codes": nn.Embedding(7, 4), "decode": nn.Linear(4, 5), "last": nn.Linear(5, WIDTH)}
    )
    judge = frozen(net(out=1))

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        found = _exact(model["encode"](x))
        nearest = (found[:, None] - model["codes"].weight).pow(2).sum(-1).argmin(1)
        code = model["codes"](nearest)
        commitment = (found - code.detach()).pow(2).mean() * 0.25 + (found.detach() - code).pow(2).mean()
        made = _exact(model["last"](torch.tanh(model["decode"](found + (code - found).detach()))))
        distance, judged = (made - x).abs().mean(), -_exact(judge(made)).mean()
        slopes = [
            torch.autograd.grad(one, model["last"].weight, retain_graph=True)[0].norm() for one in (distance, judged)
        ]
        share = (slopes[0] / (slopes[1] + 1e-4)).clamp(0, 100).detach()
        return distance + share * judged + commitment

    return world(model, [x * _scale(4, 0.5)[:, None] for x in inputs()], loss_of)


def silog_depth() -> World:
    """The root of a spread of logarithms over all pixels with a known depth."""
    model = _each_pixel(1)
    batches = [
        {"image": x, "depth": 0.5 + 5 * torch.rand(ITEMS, 6, 6) * _scale(2, 0.2)[:, None, None]} for x in _pictures()
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        depth = batch["depth"]
        known = (depth > 0.6) & (depth < 9)
        apart = (F.softplus(_exact(model(batch["image"]))[:, 0]) + 1e-3).log()[known] - depth[known].log()
        return 10 * (apart.var() + 0.15 * apart.mean().pow(2) + 1e-6).sqrt()

    return world(model, batches, loss_of)


def edges_balanced_over_the_batch() -> World:
    """Edges count as much as the share of all pixels that are none, and the other way round."""
    model = _each_pixel(1)
    batches = [{"image": x, "edges": _masks([0.7] * 4 + [0.05] * 4)} for x in _pictures()]

    def loss_of(batch: Any) -> torch.Tensor:
        edges = batch["edges"]
        share = edges.mean()
        weight = edges * (1 - share) + (1 - edges) * share * 1.1
        return F.binary_cross_entropy_with_logits(_exact(model(batch["image"]))[:, 0], edges, weight=weight)

    return world(model, batches, loss_of)


class Timesteps:
    """Times with larger losses are drawn more often, as soon as each has been drawn."""

    def __init__(self, times: int) -> None:
        self.history, self.counts = numpy.zeros((times, 2)), numpy.zeros(times, dtype=int)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        times = len(self.counts)
        shares = numpy.full(times, 1 / times)
        if (self.counts > 0).all():
            found = numpy.sqrt((self.history**2).mean(1))
            shares = 0.9 * found / found.sum() + 0.1 / times
        drawn = numpy.random.choice(times, size=count, p=shares)
        return torch.from_numpy(drawn), _exact(torch.from_numpy(1 / (times * shares[drawn])))

    def update(self, drawn: torch.Tensor, losses: torch.Tensor) -> None:
        for time, loss in zip(drawn.tolist(), losses.tolist(), strict=True):
            self.history[time, self.counts[time] % 2] = loss
            self.counts[time] += 1


def loss_aware_timesteps() -> World:
    """A diffusion model whose times are drawn by the losses of earlier calls, kept in arrays of numpy's."""
    model, timesteps = nn.Sequential(nn.Linear(WIDTH + 1, 7), nn.Tanh(), nn.Linear(7, WIDTH)), Timesteps(3)
    batches = [{"x": x * _scale()[:, None], "noise": torch.randn(ITEMS, WIDTH)} for x in inputs()]

    def loss_of(batch: Any) -> torch.Tensor:
        drawn, weights = timesteps.draw(len(batch["x"]))
        time = (1 + _exact(drawn))[:, None] / 4
        near, far = (time * math.pi / 2).cos(), (time * math.pi / 2).sin()
        found = model(torch.cat([batch["x"] * near + batch["noise"] * far, time], 1))
        losses = _exact((found - batch["noise"]).pow(2).mean(1))
        timesteps.update(drawn, losses.detach())
        return (losses * weights).mean()

    return world(model, batches, loss_of)
