"""What is drawn where nobody knows a value: the same for a seed, plausible, and an end to loops that wait for it."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from tests.shared.fresh import answer

START = """
import os, ullage
ullage.emulate("A100", values_seed=int(os.environ.get("SEED", "0")), routing=os.environ.get("ROUTING", "drawn"))
import torch
from torch import nn
torch.manual_seed(0)
"""
MIXTURE = """
def mixture(experts=8, chosen=2):
    gate = nn.Linear(256, experts).cuda()
    weights, indices = gate(torch.randn(4096, 256, device="cuda")).softmax(-1).topk(chosen)
    return torch.bincount(indices.flatten(), minlength=experts).tolist()
"""
EVERYTHING = """
try:
    from torchvision.ops import batched_nms, clip_boxes_to_image
except ModuleNotFoundError:  # not every tested torch has one: scores alone decide then
    clip_boxes_to_image = lambda boxes, size: boxes.clamp(0, size[0])
    batched_nms = lambda boxes, scores, groups, most: (scores > 0).nonzero()

def kept():
    predicted = nn.Conv2d(3, 5, 16, 16).cuda()(torch.rand(1, 3, 512, 512, device="cuda"))[0].flatten(1).T
    corner = predicted[:, :2] * 100 + 200
    boxes = clip_boxes_to_image(torch.cat([corner, corner + predicted[:, 2:4].exp() * 50], 1), (512, 512))
    for _ in range(20):  # a long way from what is drawn to what is read
        boxes = torch.stack([each * 1.0 for each in boxes.unbind(1)], 1)
    outside = int((boxes < 0).sum() + (boxes > 512).sum())
    return len(batched_nms(boxes, predicted[:, 4], torch.zeros_like(predicted[:, 4]), 0.5)), outside

def episode(most=40):
    policy = nn.Linear(8, 4).cuda()
    chances = []
    while len(chances) < most:
        distribution = torch.distributions.Categorical(logits=policy(torch.randn(8).cuda()))
        action = distribution.sample()
        chances.append(distribution.log_prob(action))
        if action.item() == 3:
            break
    (-torch.stack(chances).sum()).backward()
    return len(chances)

def sampled():
    done, words = torch.zeros(8, dtype=torch.bool, device="cuda"), 0
    head = nn.Linear(16, 20).cuda()
    while not done.all():
        words += 1
        done = done | (head(torch.randn(8, 16, device="cuda")).softmax(-1).multinomial(1)[:, 0] == 0)
    return words

def fixed_point(most=1000, how="item"):
    layer, given = nn.Linear(64, 64).cuda(), torch.randn(32, 64, device="cuda")
    state = torch.zeros_like(given)
    for rounds in range(most):
        after = torch.tanh(layer(state) * 0.5 + given)
        error, state = (after - state).norm(), after
        if (error.item() if how == "item" else error) < 1e-3:
            break
    return rounds

def losses(steps=30):
    layer = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    found = []
    for _ in range(steps):
        loss = layer(torch.randn(32, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

def clusters(most=500):
    points = nn.Linear(16, 16).cuda()(torch.randn(200, 16, device="cuda"))
    before = None
    for rounds in range(most):
        nearest = torch.cdist(points, points[:4] + rounds).argmin(-1)
        if before is not None and torch.equal(before, nearest):
            break
        before = nearest
    return rounds

mask = torch.rand(4096, device="cuda") < 0.15
tell({
    "mixture": mixture(), "kept": kept(), "episodes": [episode() for _ in range(8)], "sampled": sampled(),
    "fixed point": fixed_point(), "fixed point, asked on the card": fixed_point(how="card"), "losses": losses(),
    "clusters": clusters(), "masked": int(mask.sum()), "nan": bool(torch.isnan(torch.randn(5, device="cuda")).any()),
})
"""


@cache
def found(seed: int, time: int = 0) -> dict[str, Any]:
    """Return what is decided with a seed; `time` has it be done again."""
    del time
    told: dict[str, Any] = answer(START + MIXTURE + EVERYTHING, environment={"SEED": str(seed)})
    return told


@cache
def routed(routing: str) -> list[int]:
    """Return how many tokens each expert gets."""
    told: list[int] = answer(START + MIXTURE + "tell(mixture())", environment={"ROUTING": routing})
    return told


def test_a_seed_decides() -> None:
    """The same in another process; other sizes with another seed."""
    first = found(0)
    assert first == found(0, 1)
    other = found(1)
    assert other["mixture"] != first["mixture"]
    assert other["kept"] != first["kept"]
    assert other["masked"] != first["masked"]


@pytest.mark.parametrize("seed", [0, 1])
def test_plausible(seed: int) -> None:
    """Shares are those of random numbers, boxes stay in their picture, and losses are positive."""
    told = found(seed)
    assert sum(told["mixture"]) == 2 * 4096
    assert min(told["mixture"]) > 0
    assert max(told["mixture"]) < 4096
    kept, outside = told["kept"]
    assert 0 < kept <= 1024
    assert outside == 0
    assert 500 < told["masked"] < 730  # of 614
    assert not told["nan"]
    assert all(loss > 0 for loss in told["losses"])


@pytest.mark.parametrize("seed", [0, 1])
def test_loops_end(seed: int) -> None:
    """Sampling ends by chance; what is read again and again falls off, and a loss that is read each step does not."""
    told = found(seed)
    assert 1 < max(told["episodes"]) <= 40
    assert 1 < told["sampled"] < 1000
    assert 3 <= told["fixed point"] <= 100
    assert 3 <= told["fixed point, asked on the card"] <= 100
    assert told["clusters"] < 100
    losses = told["losses"]
    assert max(losses[20:]) > max(losses[:10]) / 100


def test_routing() -> None:
    """Balanced, all to the first experts, or by a law."""
    assert routed("balanced") == [1024] * 8
    assert routed("worst") == [4096, 4096, 0, 0, 0, 0, 0, 0]
    skewed = routed("1.5")
    assert sum(skewed) == 2 * 4096
    assert skewed[0] > 2 * skewed[3] > 2 * skewed[7]


def test_generate_ends() -> None:
    """Greedily at the limit; by sampling, there at the latest."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    lengths = answer(
        START
        + """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = LlamaForCausalLM(config).cuda()
ids = torch.randint(3, 40, (2, 8)).cuda()
tell([model.generate(ids, max_new_tokens=most, do_sample=sampling).shape[1]
      for most, sampling in ((12, False), (12, True), (400, True))])
"""
    )
    assert lengths[0] <= 20
    assert lengths[1] <= 20
    assert 8 < lengths[2] < 408
