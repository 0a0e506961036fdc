"""A batch that is taken in parts gives the gradient and the loss of the whole, and grows back to it."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import warnings

    import torch
    from torch import nn
    from torch.nn import functional as F

    import ullage
    from tests.training.guard.faults import TEXT, Faults
    from tests.training.guard.world import World, differences, guard_of, guarded, left_of
    from ullage.training.guard.splitting.batch import form_of, items_of

EXACT = 1e-12


def _limited(world: "World", limit: int, *, dim: int = 0) -> list[int]:
    """Have the loss function run out above so many items; return what it is asked for."""
    asked: list[int] = []
    loss_of = world.loss_of

    def limited(batch: Any) -> Any:
        items = items_of(batch, dim)
        assert items is not None
        asked.append(items)
        if items > limit:
            raise torch.OutOfMemoryError(TEXT)
        return loss_of(batch)

    world.loss_of = limited
    return asked


def _double(items: int, *, steps: int = 3, **options: Any) -> "World":
    """A model with BatchNorm in float64, and no dropout."""
    torch.manual_seed(items)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    model[1].running_mean.uniform_()
    return World(
        model=model,
        optimizers=[torch.optim.Adam(model.parameters(), lr=1e-2)],
        batches=[(torch.randn(items, 4).double(), torch.randn(items, 3).double()) for _ in range(steps)],
        loss_of=lambda batch: F.mse_loss(model(batch[0]), batch[1]),
        options={"batchnorm": "freeze", "splittable": True, **options},
    )


@pytest.mark.parametrize("items", [7, 8, 12, 13])
@inside
def test_a_split_gives_what_the_whole_gives(items: int) -> str:
    """For every limit from 1 item on, losses, gradients, parameters and state are within 1e-12; no item is left out."""
    expected = left_of(guarded(lambda: _double(items)))
    for limit in range(1, items + 1):
        world = _double(items)
        asked = _limited(world, limit)
        guarded(lambda world=world: world)
        assert differences(expected, left_of(world), within=EXACT) == [], limit
        taken = [size for size in asked if size <= limit]
        assert sum(taken) == 3 * items, (limit, taken)
    return f"{items} limits"


@inside
def test_a_split_gives_the_same_wherever_it_fails() -> str:
    """An error at any operation, raised as long as there are more than three items, is cured by parts."""
    counting = Faults()
    expected = left_of(guarded(lambda: _double(8, steps=1), counting))
    points = 0
    for point in range(0, counting.count, 3):
        world = _double(8, steps=1)
        holding = {"items": 8, "whole": world.loss_of}

        def loss_of(batch: Any, holding: dict[str, Any] = holding) -> torch.Tensor:
            holding["items"] = items_of(batch)
            return holding["whole"](batch)

        class Above(Faults):
            """Raises from an operation on, while a batch of more than three items is taken."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if self.count >= self.begin and self.held["items"] > 3 and not self.is_done:
                    self.at.add(self.count)
                return super().__torch_dispatch__(func, types, args, kwargs)

        world.loss_of = loss_of
        guard = guard_of(world)
        faults = Above()
        faults.begin, faults.held, faults.is_done = point, holding, False
        with faults:
            try:
                world.losses.append(guard.step(world.batches[0], world.loss_of, update=False))
            except torch.OutOfMemoryError:
                continue  # where what is put back fails as often as it is tried, there is no cure
            faults.is_done = True
            guard.update()
        points += 1
        assert differences(expected, left_of(world), within=EXACT) == [], (point, world.said)
    assert points > 5
    return f"{points} points"


@inside
def test_a_mean_of_means_would_be_noticed() -> None:
    """Parts of 3, 3 and 1 item that count alike give another gradient, by far more than what is tolerated."""
    world = _double(7, steps=1)
    expected = left_of(guarded(lambda: _double(7, steps=1)))
    world.model[1].eval()
    x, y = world.batches[0]
    parts = [slice(0, 3), slice(3, 6), slice(6, 7)]
    for part in parts:
        (F.mse_loss(world.model(x[part]), y[part]) / len(parts)).backward()
    wrong, right = world.model[0].weight.grad, expected["gradient 0.weight"]
    assert not torch.allclose(wrong, right, rtol=1e-2, atol=1e-3)


@inside
def test_a_sum_is_summed() -> None:
    """With reduction="sum" each part counts in full."""

    def build() -> World:
        world = _double(7, reduction="sum")
        model = world.model
        world.loss_of = lambda batch: F.mse_loss(model(batch[0]), batch[1], reduction="sum")
        return world

    def split() -> World:
        world = build()
        _limited(world, 3)
        return world

    assert differences(left_of(guarded(build)), left_of(guarded(split)), within=EXACT) == []


def _tokens(**options: Any) -> "World":
    """A mean over tokens, of which each item has another number: item 2 has none, nor items 4 and 5."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11)).double()
    lengths = torch.tensor([5, 1, 0, 4, 0, 0, 3])
    batches = []
    for _ in range(3):
        tokens = torch.randint(1, 11, (7, 5))
        batches.append({"x": tokens, "y": tokens.masked_fill(torch.arange(5) >= lengths[:, None], -100)})
    return World(
        model=model,
        optimizers=[torch.optim.SGD(model.parameters(), lr=0.5)],
        batches=batches,
        loss_of=lambda batch: F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten()),
        options={"splittable": True, **options},
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@inside
def test_a_mean_over_tokens_is_weighted_by_tokens(limit: int) -> None:
    """With a weight function the parts count by their tokens; a part without any adds nothing, not even a nan."""

    def split(**options: Any) -> World:
        world = _tokens(**options)
        _limited(world, limit)
        return world

    def count(batch: Any) -> int:
        return int((batch["y"] != -100).sum())

    expected = left_of(guarded(_tokens))
    assert differences(expected, left_of(guarded(lambda: split(weight=count))), within=EXACT) == []
    assert differences(expected, left_of(guarded(split)), within=1e-6) != []  # by items it is another gradient


@inside
def test_a_weight_that_does_not_add_up_is_refused() -> None:
    """A mean length, say, is no count: the message has both figures."""
    world = _tokens(weight=lambda batch: float((batch["y"] != -100).double().mean()))
    _limited(world, 3)
    with pytest.raises(ullage.UsageError, match=r"weight returned 0\.371429 for 7 items, and 0\.7 in total for"):
        guard_of(world).step(world.batches[0], world.loss_of)


@inside
def test_what_comes_with_the_loss_is_put_together() -> None:
    """Rows are joined in order, numbers averaged by items, anything else listed."""
    world = _double(7, steps=1)
    model = world.model

    def loss_of(batch: Any) -> Any:
        loss = F.mse_loss(model(batch[0]), batch[1])
        return loss, {"rows": batch[0] * 2, "loss": loss, "number": float(len(batch[0])), "name": "x", "two": (loss, 1)}

    world.loss_of = loss_of
    whole, of_whole = guard_of(world).step(world.batches[0], world.loss_of, update=False)
    asked = _limited(world, 3)
    loss, extra = guard_of(world).step(world.batches[0], world.loss_of, update=False)
    assert torch.allclose(loss, whole, rtol=EXACT)
    assert not loss.requires_grad
    assert not extra["loss"].requires_grad
    assert torch.equal(extra["rows"], world.batches[0][0] * 2)
    assert torch.allclose(extra["loss"], of_whole["loss"], rtol=EXACT)
    sizes = [size for size in asked if size <= 3]
    assert extra["number"] == pytest.approx(sum(size * size for size in sizes) / 7)
    assert extra["name"] == ["x"] * len(sizes)
    assert torch.allclose(extra["two"][0], whole, rtol=EXACT)
    assert extra["two"][1] == [1] * len(sizes)


@inside
def test_it_grows_back_and_is_patient_where_that_fails() -> None:
    """Fewer parts are tried after 32 good steps; where they do not fit after 64, 128 ... steps, without a step lost."""
    world = _double(8, steps=1)
    limit = {"items": 4}
    whole, tried = world.loss_of, []

    def loss_of(batch: Any) -> torch.Tensor:
        if len(batch[0]) > limit["items"]:
            tried.append(number)
            raise torch.OutOfMemoryError(TEXT)
        return whole(batch)

    guard = guard_of(world)
    for number in range(1, 260):
        if number == 250:
            limit["items"] = 8
        guard.step(world.batches[0], loss_of)
    assert sorted(set(tried)) == [1, 34, 98, 226], tried
    assert [str(event.parts) for event in guard.events][-3:] == ["2", "2", "2"]
    for number in range(260, 520):  # noqa: B007 -- read by the function above
        guard.step(world.batches[0], loss_of)
    assert len(set(tried)) == 4
    assert guard._ladder.plans.plan_for(form_of(world.batches[0]).shape).is_plain


@inside
def test_what_cannot_be_split_is_not() -> None:
    """With splittable=False the loss function never sees a part; the error comes through and nothing has changed."""
    world = _double(8, splittable=False)
    asked = _limited(world, 4)
    before = left_of(world)
    with pytest.raises(torch.OutOfMemoryError):
        guard_of(world).step(world.batches[0], world.loss_of)
    assert set(asked) == {8}
    assert differences(before, left_of(world)) == []


@inside
def test_batchnorm_under_a_split_is_said_once() -> None:
    """Without a choice there is one warning with the figures; with "allow" none; with "freeze" none is needed."""
    for choice, count in ((None, 1), ("allow", 0), ("freeze", 0)):
        world = _double(8, batchnorm=choice)
        _limited(world, 4)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            guard = guard_of(world)
            for batch in world.batches:
                guard.step(batch, world.loss_of)
        texts = [str(one.message) for one in said]
        assert len(texts) == count, texts
        assert all("a batch of 8 items is run in 2 parts, and 1 modules such as BatchNorm1d" in text for text in texts)
        assert all(one.filename == __file__ for one in said), [one.filename for one in said]
