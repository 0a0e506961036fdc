"""A batch is split only if the losses of its parts add up, in every precision, with any denominator, and with hooks."""

import gc
import weakref
from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import torch
    from torch import nn
    from torch.nn import functional as F

    import ullage
    from tests.training.guard.idioms.outcome import TEXT
    from ullage.training.guard.splitting.additivity import _chunks

ITEMS, WORDS, LENGTH = 16, 32, 12
PRECISIONS = ("float64", "float32", "bfloat16 autocast", "float16 autocast", "bfloat16 model")
ROUNDING = {"float64": 1e-6, "float32": 1e-5}
"""The largest difference of two gradients by rounding, for the types that round little."""
COARSE = 2e-2
"""The same for bfloat16 and float16."""


class _Left:
    """The number of errors of memory that are still to be raised; it is not a variable of a loss function."""

    failures = 0


def _model(outputs: int = WORDS) -> "nn.Module":
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, outputs))


def _batch() -> dict[str, Any]:
    chance = torch.Generator().manual_seed(3)
    lengths = torch.tensor([LENGTH] * (ITEMS // 2) + [2] * (ITEMS // 2))
    labels = torch.randint(0, WORDS, (ITEMS, LENGTH), generator=chance)
    labels[torch.arange(LENGTH)[None] >= lengths[:, None]] = -100
    return {
        "x": torch.randn(ITEMS, LENGTH, 8, generator=chance),
        "labels": labels,
        "rewards": torch.randn(ITEMS, generator=chance) + torch.arange(ITEMS) / 4,
        "keep": torch.arange(ITEMS) < 10,
    }


def _tokens(model: Any, batch: Any, **options: Any) -> Any:
    return F.cross_entropy(model(batch["x"]).float().flatten(0, 1), batch["labels"].flatten(), **options)


LOSSES = {
    # name: (the loss of a model and a batch, whether a batch may be split)
    "mean over tokens": (_tokens, True),
    "label smoothing": (lambda model, batch: _tokens(model, batch, label_smoothing=0.1), True),
    "class weights": (lambda model, batch: _tokens(model, batch, weight=torch.linspace(0.2, 3, WORDS)), True),
    "sum over tokens": (lambda model, batch: _tokens(model, batch, reduction="sum") / 77, True),
    "mean over items": (lambda model, batch: model(batch["x"]).float().pow(2).mean(), True),
    "normalized advantages": (lambda model, batch: _policy(model, batch), False),
    "mean over some items": (
        lambda model, batch: (
            (model(batch["x"]).float().pow(2).mean((1, 2)) * batch["keep"]).sum() / batch["keep"].sum()
        ),
        True,
    ),
    "contrastive": (lambda model, batch: _contrastive(model, batch), False),
    "load balancing": (lambda model, batch: _tokens(model, batch) + 0.01 * _balance(model, batch), False),
    "deviation of the batch": (
        lambda model, batch: (model(batch["x"]).float() / model(batch["x"]).detach().float().std()).pow(2).mean(),
        False,
    ),
}


def _policy(model: Any, batch: Any) -> Any:
    chosen = model(batch["x"]).float().log_softmax(-1)[:, 0, 0]
    advantage = (batch["rewards"] - batch["rewards"].mean()) / (batch["rewards"].std() + 1e-8)
    return -((chosen - chosen.detach()).exp() * advantage).mean()


def _contrastive(model: Any, batch: Any) -> Any:
    features = F.normalize(model(batch["x"]).float().mean(1), dim=1)
    return F.cross_entropy(features @ features.T / 0.07, torch.arange(len(features)))


def _balance(model: Any, batch: Any) -> Any:
    shares = model(batch["x"]).float().softmax(-1).flatten(0, 1)
    return (shares.mean(0) * F.one_hot(shares.argmax(-1), WORDS).float().mean(0)).sum()


def _gradient(name: str, precision: str, failures: int, **options: Any) -> Any:
    """Return the gradient of a step with some errors of memory, or the text of its refusal."""
    torch.manual_seed(0)
    model, batch, loss_of = _model(), _batch(), LOSSES[name][0]
    if precision in ("float64", "bfloat16 model"):
        dtype = torch.float64 if precision == "float64" else torch.bfloat16
        model, batch["x"] = model.to(dtype), batch["x"].to(dtype)
    narrow = torch.float16 if precision.startswith("float16") else torch.bfloat16
    _Left.failures = failures

    def limited(some: Any) -> Any:
        with torch.autocast("cpu", dtype=narrow, enabled=precision.endswith("autocast")):
            loss = loss_of(model, some)
        if _Left.failures and loss.requires_grad:
            _Left.failures -= 1
            raise torch.OutOfMemoryError(TEXT)
        return loss

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), log=lambda line: None, **options)
    try:
        guard.step(batch, limited)
    except torch.OutOfMemoryError as error:
        return " ".join(error.__notes__)
    return torch.cat([one.grad.flatten().double() for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LOSSES)
@inside
def test_a_split_is_proven_in_every_precision(name: str, precision: str) -> str:
    """Bfloat16 hides nothing: what may not be split in float64 is refused, and what may be split is equal."""
    whole, split = _gradient(name, precision, 0), _gradient(name, precision, 2)
    if not LOSSES[name][1]:
        assert isinstance(split, str), "it was split"
        assert "differs from the sum over their parts" in split
        return split
    assert not isinstance(split, str), split
    gap = float((whole - split).norm() / whole.norm())
    assert gap < ROUNDING.get(precision, COARSE), gap
    return f"{gap:.1e}"


def _hooked(kind: str) -> tuple[Any, Any]:
    """Return a model with a hook that changes gradients, and its loss function."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))

    def normalize(parameter: Any) -> None:
        parameter.grad = parameter.grad / (parameter.grad.norm() + 1e-6)

    def loss_of(batch: Any) -> Any:
        hidden = model[:2](batch["x"])
        if kind == "of an activation" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))
        return F.cross_entropy(model[2](hidden), batch["y"])

    if kind == "after accumulation":
        model[0].weight.register_post_accumulate_grad_hook(normalize)
    if kind == "of a parameter":
        model[0].weight.register_hook(lambda gradient: gradient.clamp(-5.0, 5.0))
    return model, loss_of


@pytest.mark.parametrize("vouched", [None, True])
@pytest.mark.parametrize("kind", ["after accumulation", "of a parameter", "of an activation"])
@inside
def test_hooks_on_gradients_are_not_run_on_parts(kind: str, vouched: bool | None) -> str:
    """A hook that may change a gradient would act on each part. The user can vouch for hooks on single gradients."""
    torch.manual_seed(0)
    model, loss_of = _hooked(kind)
    batch = {"x": torch.randn(8, 6), "y": torch.randint(0, 4, (8,))}
    _Left.failures = 2

    def limited(some: Any) -> Any:
        loss = loss_of(some)
        if _Left.failures and torch.is_grad_enabled():
            _Left.failures -= 1
            raise torch.OutOfMemoryError(TEXT)
        return loss

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), splittable=vouched, log=lambda line: None)
    if vouched and kind != "after accumulation":
        guard.step(batch, limited)
        return "vouched"
    with pytest.raises(torch.OutOfMemoryError) as raised:
        guard.step(batch, limited)
    notes = " ".join(raised.value.__notes__)
    assert "hook on" in notes
    assert "which would act on each part of the batch" in notes
    return notes


@pytest.mark.parametrize("is_unclear", [False, True])
@inside
def test_a_list_of_targets_is_split_with_its_images(*, is_unclear: bool) -> str:
    """A list with one dict for each image is cut like the images; a list whose tensors fit the batch too is not cut."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    images = torch.randn(8, 6)
    targets = [{"boxes": torch.randn(8 if is_unclear else index % 3 + 1, 4)} for index in range(8)]

    def loss_of(batch: Any) -> Any:
        losses = [(net(one) - two["boxes"]).pow(2).mean() for one, two in zip(*batch.values(), strict=True)]
        if _Left.failures and torch.is_grad_enabled():
            _Left.failures -= 1
            raise torch.OutOfMemoryError(TEXT)
        return sum(losses) / len(losses)

    gradients = []
    for failures in (0, 2):
        _Left.failures = failures
        net.zero_grad()
        guard = ullage.Guard(net, torch.optim.SGD(net.parameters(), lr=0.0), splittable=True, log=lambda line: None)
        if failures and is_unclear:
            with pytest.raises(torch.OutOfMemoryError) as raised:
                guard.step({"images": images, "targets": targets}, loss_of)
            notes = " ".join(raised.value.__notes__)
            assert "it holds a list of 8 containers of tensors of size 8" in notes
            return notes
        guard.step({"images": images, "targets": targets}, loss_of)
        assert net.weight.grad is not None
        gradients.append(net.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    return "equal"


@inside
def test_no_batch_is_kept_after_a_split() -> None:
    """The weights of the parts come from the batch, which is released with the step."""
    _, guard, limited = _limited_by(_tokens)
    batch = _batch()
    _Left.failures = 2
    guard.step(batch, limited)
    assert guard.events[-1].parts == 2
    seen = weakref.ref(batch["x"])
    del batch
    gc.collect()
    assert seen() is None


@inside
def test_gradients_that_do_not_fit_at_once_are_compared_in_groups() -> None:
    """A trial that runs out of memory with all gradients runs backward for a few parameters at a time."""
    parameters = [torch.zeros(size) for size in (5, 3, 9, 1, 1)]
    for elements in (1, 4, 8, 100):
        groups = list(_chunks(parameters, elements))
        assert [one for group in groups for one in group] == parameters
        assert all(len(group) == 1 or sum(map(torch.numel, group)) <= elements for group in groups)


class _Auxiliary(torch.autograd.Function if INSIDE else object):  # type: ignore[misc]
    """Adds the gradient of a further loss, whatever the gradient of its output is, as routers of experts do."""

    @staticmethod
    def forward(ctx: Any, x: Any, loss: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, torch.ones(())


def _router(model: Any, batch: Any) -> Any:
    hidden = model[:2](batch["x"])
    return model[2](_Auxiliary.apply(hidden, 0.1 * hidden.logsumexp(-1).pow(2).mean())).pow(2).mean()


def _sparse_rewards(model: Any, batch: Any) -> Any:
    chosen = model(batch["x"]).log_softmax(-1)[:, 0, 0]
    rewards = (batch["rewards"] > 2.5).float()
    return -((chosen - chosen.detach()).exp() * (rewards - rewards.mean())).mean()


@pytest.mark.parametrize("name", ["router", "sparse rewards"])
@inside
def test_a_coupling_that_the_loss_does_not_show_is_found(name: str) -> None:
    """A gradient that is added aside, and rewards that differ only among the last items."""
    model, guard, limited = _limited_by(_router if name == "router" else _sparse_rewards)
    _Left.failures = 2
    with pytest.raises(torch.OutOfMemoryError) as raised:
        guard.step(_batch(), limited)
    assert "differs from the sum over their parts" in " ".join(raised.value.__notes__)
    assert all(one.grad is None for one in model.parameters())


@inside
def test_a_coupling_that_begins_later_is_found() -> None:
    """Equal rewards couple nothing, so the first step is split; the second, of the same shape, is not."""
    model, guard, limited = _limited_by(_sparse_rewards)
    batch = _batch()
    _Left.failures = 2
    guard.step({**batch, "rewards": torch.zeros(ITEMS)}, limited)
    guard.step(batch, limited)
    found = [one.grad.clone() for one in model.parameters()]
    expected = torch.autograd.grad(_sparse_rewards(model, batch), list(model.parameters()))
    torch.testing.assert_close(found, list(expected))


def _limited_by(loss_of: Any) -> tuple[Any, Any, Any]:
    """Return a model, its guard, and the loss function, which runs out of memory `_Left.failures` times."""
    torch.manual_seed(0)
    model = _model()

    def limited(batch: Any) -> Any:
        loss = loss_of(model, batch)
        if _Left.failures and loss.requires_grad:
            _Left.failures -= 1
            raise torch.OutOfMemoryError(TEXT)
        return loss

    return model, ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), log=lambda line: None), limited
