"""What a run's own steps tell of those to come, on an emulated card whose allocator is PyTorch's own."""

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import random

    import numpy as np
    import pytest
    import torch
    from torch import nn

    import ullage
    from ullage.training.guard.retries.forecast import _features, _fit
    from ullage.training.guard.splitting.batch import form_of


class Setting:
    """An encoder with attention in the open (its share grows with the square of a length) on a card of 15 GiB."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embed = nn.Embedding(4000, 512).cuda()
        self.layers = nn.ModuleList(nn.Linear(512, 1536) for _ in range(6)).cuda()
        self.unembed = nn.Linear(512, 4000).cuda()
        self.modules = [self.embed, self.layers, self.unembed]
        self.said: list[str] = []
        parameters = [one for module in self.modules for one in module.parameters()]
        self.optimizer = torch.optim.AdamW(parameters)
        self.guard = ullage.Guard(self.modules, self.optimizer, splittable=True, log=self.said.append)

    def loss_of(self, tokens: "torch.Tensor") -> "torch.Tensor":
        hidden = self.embed(tokens)
        for layer in self.layers:
            query, key, value = layer(hidden).view(*tokens.shape, 8, 192).transpose(1, 2).chunk(3, -1)
            mixed = torch.softmax(query @ key.transpose(-1, -2), -1) @ value
            hidden = hidden + mixed.transpose(1, 2).reshape(hidden.shape)
        logits: torch.Tensor = self.unembed(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def batch(self, items: int, length: int) -> "torch.Tensor":
        return torch.zeros(items, length, dtype=torch.long, device="cuda")


@inside
def test_coefficients_of_a_sum_of_terms_are_found() -> None:
    """Of every choice of terms, those that made the sum; none is below zero."""
    shapes = [(8, 64), (8, 512), (4, 900), (16, 100), (2, 2000)]
    features = np.array([_features(*shape) for shape in shapes])
    for terms in ((0, 300, 0), (0, 300, 0.5), (0, 0, 2), (1000, 300, 2)):
        assert np.allclose(_fit(features, features @ np.array(terms)), terms, rtol=1e-3, atol=1e-3)
    assert (_fit(features, np.array([5.0, 1.0, 3.0, 2.0, 8.0]) * 1e6) >= 0).all()


@inside
def test_errors_of_memory_are_rare_after_ten_steps_of_lengths_that_vary() -> str:
    """Four in ten steps need more than the card has; a guard that has seen ten of them takes the others in parts."""
    setting = Setting()
    chance = random.Random(1)
    late = 0
    in_parts = 0
    for number in range(120):
        before = len(setting.said)
        batch = setting.batch(32, chance.randrange(64, 1600) // 16 * 16)
        setting.guard.step(batch, setting.loss_of)
        shape = form_of(batch).shape
        plan = setting.guard._ladder.plans.plan_for(shape)
        in_parts += plan is not None and plan.parts > 1
        late += number >= 10 and len(setting.said) > before
    assert in_parts > 30
    assert late <= 2, setting.said
    return f"{in_parts} of 120 steps in parts, {late} errors after the tenth step"


@inside
def test_a_rehearsal_has_no_effect_but_what_it_learns() -> None:
    """Parameters, gradients, state, random numbers: as before; the plan and the cache: made."""
    setting = Setting()
    loader = [setting.batch(24, length) for length in (64, 1584, 512)]
    versions = [parameter._version for parameter in setting.layers.parameters()]
    states = torch.get_rng_state(), torch.cuda.get_rng_state(), random.getstate()
    found = setting.guard.rehearse(loader, setting.loss_of)
    assert (found.batches, found.items, found.length) == (3, 24, 1584)
    assert found.parts > 1
    assert found.has_tried_optimizers
    assert found.peak_allocated_bytes is not None
    assert found.peak_reserved_bytes is not None
    assert found.peak_allocated_bytes > 8 << 30
    assert "is run in" in str(found)
    assert versions == [parameter._version for parameter in setting.layers.parameters()]
    assert all(parameter.grad is None for parameter in setting.layers.parameters())
    assert not setting.optimizer.state
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], torch.cuda.get_rng_state())
    assert states[2] == random.getstate()
    setting.said.clear()
    setting.guard.step(loader[1], setting.loss_of)
    setting.guard.step(loader[0], setting.loss_of)
    assert setting.said == []


@inside
def test_a_rehearsal_of_lengths_makes_the_longest_batch() -> None:
    setting = Setting()
    made: list[int] = []

    def batch_of(length: int) -> "torch.Tensor":
        made.append(length)
        return setting.batch(2, length)

    found = setting.guard.rehearse([64, 512, 100], setting.loss_of, batch_of=batch_of)
    assert made == [512]
    assert (found.items, found.length, found.parts) == (2, 512, 1)
    for wrong in ([], [64, 512]):
        with pytest.raises(ullage.UsageError, match="expected"):
            setting.guard.rehearse(wrong, setting.loss_of)


@inside
def test_a_phase_gives_the_cache_back_at_both_borders() -> None:
    """What training keeps is not in the way of evaluation, nor the other way round."""
    setting = Setting()
    setting.guard.step(setting.batch(8, 512), setting.loss_of)
    held = torch.cuda.memory_reserved()
    with setting.guard.phase(), torch.no_grad():
        assert torch.cuda.memory_reserved() < held
        setting.loss_of(setting.batch(8, 512))
        inside_bytes = torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() < inside_bytes
