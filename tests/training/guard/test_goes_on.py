"""What a user does around a guard: errors that are caught, optimizers that change, parameters that join."""

import copy
import gc
import weakref

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    from typing import Any

    import torch
    from torch import nn

    import ullage
    from tests.training.guard.faults import TEXT, Faults


def quiet(model: "nn.Module", optimizer: "torch.optim.Optimizer", **options: "Any") -> "ullage.Guard":
    return ullage.Guard(model, optimizer, log=lambda line: None, **options)


def failing_times(times: int) -> "Any":
    left = [times]

    def fail(*_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError(TEXT)

    return fail


@inside
def test_a_step_that_an_error_has_ended_leaves_nothing_to_the_next() -> None:
    """The caller goes on with another batch: its gradient is that batch's alone."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).double()
    guard = quiet(model, torch.optim.SGD(model.parameters(), lr=0.0))
    first, second = torch.randn(2, 4, 4, dtype=torch.float64)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    def refuse(gradient: torch.Tensor) -> None:
        raise ValueError("not this one")

    guard.step(first, loss_of)
    hook = model[0].weight.register_hook(refuse)
    with pytest.raises(ValueError, match="not this one"):
        guard.step(first, loss_of)
    hook.remove()
    guard.step(second, loss_of)
    found = model[1].weight.grad.clone()
    model.zero_grad()
    loss_of(second).backward()
    assert torch.equal(found, model[1].weight.grad)


@inside
def test_an_optimizer_that_changes_its_operations_is_learned_anew() -> None:
    """load_state_dict turns foreach off: an error at any operation of the next step is mended all the same."""

    def trained(fault: int | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        faults = Faults()
        guard = quiet(model, optimizer)
        batches = torch.randn(3, 8, 4, dtype=torch.float64)
        with faults:
            for number, batch in enumerate(batches):
                if number == 2:
                    state = copy.deepcopy(optimizer.state_dict())
                    state["param_groups"][0]["foreach"] = False
                    optimizer.load_state_dict(state)
                    faults.at = {faults.count + fault} if fault is not None else set()
                guard.step(batch, lambda part: model(part).square().mean())
        return model[0].weight.detach()

    expected = trained(None)
    assert all(torch.equal(trained(fault), expected) for fault in range(0, 120, 2))


@inside
def test_parameters_that_join_an_optimizer_are_guarded_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = quiet(model, optimizer)
    added = nn.Linear(4, 1)
    model.append(added)
    optimizer.add_param_group({"params": list(added.parameters())})
    model[0].weight.register_hook(failing_times(1))
    batch = torch.randn(8, 4)
    guard.step(batch, lambda part: model(part).square().mean())
    found = added.weight.grad.clone()
    model.zero_grad()
    model(batch).square().mean().backward()
    assert torch.equal(found, added.weight.grad)


@inside
def test_a_batch_with_something_that_all_items_share_is_only_cut_when_told() -> None:
    """What is no item's own cannot be told from what is, but by its size; where sizes differ, the user decides."""

    def gradient(most: int, **options: "Any") -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(5, 10).double()
        guard = quiet(model, torch.optim.SGD(model.parameters(), lr=0.0), **options)
        batch = {"x": torch.randn(8, 5).double(), "prior": torch.rand(10).double()}

        def loss_of(part: dict[str, torch.Tensor]) -> torch.Tensor:
            if len(part["x"]) > most:
                raise torch.OutOfMemoryError(TEXT)
            return (model(part["x"]).log_softmax(-1) * part["prior"]).sum(1).mean()

        guard.step(batch, loss_of)
        return model.weight.grad

    with pytest.raises(torch.OutOfMemoryError) as caught:
        gradient(4)
    assert any("have size 8 and others 10" in note for note in caught.value.__notes__)
    assert (gradient(99) - gradient(4, splittable=True)).abs().max() < 1e-12


@inside
def test_what_comes_with_a_loss_may_be_the_loss() -> None:
    """Put together from parts, neither becomes the other."""
    model = nn.Linear(4, 1).double()
    guard = quiet(model, torch.optim.SGD(model.parameters(), lr=0.0), reduction="sum")
    batch = torch.randn(8, 4, dtype=torch.float64)

    def loss_of(part: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if len(part) > 4:
            raise torch.OutOfMemoryError(TEXT)
        loss = model(part).square().sum()
        return loss, {"nll": loss}

    loss, beside = guard.step(batch, loss_of)
    expected = model(batch).square().sum()
    assert torch.allclose(loss, expected)
    assert torch.allclose(beside["nll"], expected)


@inside
def test_an_optimizer_of_somebody_else_makes_its_state_or_does_nothing() -> None:
    """Its state does not fit for the last parameters: none is written, and there is no state, on the card or off it."""

    class Sign(torch.optim.Optimizer):
        def __init__(self, parameters: "Any") -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, 0.1)
                parameter.add_(state["mean"].sign(), alpha=-0.1)

    torch.cuda.set_per_process_memory_fraction(0.1)
    model = nn.ParameterList([nn.Parameter(torch.empty(1 << 25, device="cuda")) for _ in range(5)])
    optimizer = Sign(model.parameters())
    guard = quiet(model, optimizer)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="The state of Sign does not fit"):
            guard.step(torch.ones(2, device="cuda"), lambda part: sum((one[:1] * part.mean()).sum() for one in model))
        assert not optimizer.state


@inside
def test_a_guard_is_gone_with_its_last_name() -> None:
    """It holds no cycle of references: what a user lets go of is free at once, not when garbage is collected."""

    def trained() -> "list[weakref.ref[Any]]":
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        guard = quiet(model, optimizer)
        guard.step(torch.randn(2, 4), lambda part: model(part).square().mean())
        state = optimizer.state[model.weight]["exp_avg"]
        return [weakref.ref(guard), weakref.ref(model.weight), weakref.ref(state)]

    gc.collect()
    gc.disable()
    assert [one() for one in trained()] == [None, None, None]


@pytest.mark.parametrize(
    ("option", "value"), [("batch_dim", -1), ("batch_dim", "0"), ("scheduler", 3), ("reduction", "max")]
)
@inside
def test_an_option_that_makes_no_sense_is_refused(option: str, value: object) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ullage.UsageError, match="expected"):
        ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), **{option: value})


@inside
def test_a_large_buffer_that_is_saved_is_put_back_however_it_is_written() -> None:
    """A codebook written through .data, which no version tells."""

    class Quantizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codebook", torch.zeros(600, 600))
            self.linear = nn.Linear(4, 4)

        def forward(self, part: torch.Tensor) -> torch.Tensor:
            self.codebook.data.add_(1)
            return self.linear(part).square().mean()

    model = Quantizer()
    guard = quiet(model, torch.optim.SGD(model.parameters(), lr=0.0))
    batch = torch.randn(2, 4)
    guard.step(batch, model)
    guard.step(batch, model)
    model.linear.weight.register_hook(failing_times(1))
    guard.step(batch, model)
    assert float(model.codebook[0, 0]) == 3


@inside
def test_rows_without_weight_are_in_what_comes_beside_the_loss() -> None:
    """Two rows of padding alone: no loss, and a prediction each."""
    model = nn.Linear(4, 1).double()
    guard = quiet(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        weight=lambda part: float((part[..., 0] > 0).sum()),
        splittable=True,
    )
    batch = torch.rand(4, 4, dtype=torch.float64)
    batch[2:] = 0

    def loss_of(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(part) > 2:
            raise torch.OutOfMemoryError(TEXT)
        out = model(part)
        return out[part[..., 0] > 0].mean(), out

    loss, rows = guard.step(batch, loss_of)
    assert rows.shape == (4, 1)
    assert torch.allclose(loss, model(batch[:2]).mean())
