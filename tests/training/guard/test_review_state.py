"""State that is easily forgotten: buffers of every kind, gradients added to several times, statistics, hooks."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import warnings

    import torch
    from torch import nn
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.utils.checkpoint import checkpoint

    import ullage
    from tests.training.guard.faults import TEXT
    from ullage.training.guard.optimizer_step.first_step import has_hooks
    from ullage.training.guard.retries.memory_savers import MemorySavers
    from ullage.training.guard.retries.plan import BatchPlan
    from ullage.training.guard.splitting.batch import form_of
    from ullage.training.guard.splitting.norm import BatchNorms
    from ullage.training.guard.state.random_state import RandomState
    from ullage.training.guard.state.rewind import Rewind


class _Once:
    """Raises an error of memory at so many of its calls."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, *_: Any) -> None:
        if self.left:
            self.left -= 1
            raise torch.OutOfMemoryError(TEXT)


def _guard(model: Any, **options: Any) -> Any:
    return ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), log=lambda _: None, **options)


def _with_buffer(value: Any) -> Any:
    model = nn.Linear(4, 1)
    model.register_buffer("kept", value)
    return model


@pytest.mark.parametrize("kind", ["inference", "sparse", "sparse csr", "expanded", "empty", "nested"])
@inside
def test_a_buffer_of_any_kind_is_where_it_was(kind: str) -> None:
    """A step runs out and is taken again; the model holds the same tensor as before, with its values."""
    value = torch.ones(3)
    if kind == "inference":
        with torch.inference_mode():
            value = torch.ones(3)
    elif kind == "sparse":
        value = torch.eye(3).to_sparse()
    elif kind == "sparse csr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.eye(3).to_sparse_csr()
    elif kind == "expanded":
        value = torch.ones(1).expand(8)
    elif kind == "empty":
        value = torch.ones(0, 3)
    elif kind == "nested":
        value = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

    def values() -> Any:
        return value.values() if kind == "nested" else value.to_dense() if "sparse" in kind else value

    before = values().tolist()
    model = _with_buffer(value)
    model.weight.register_hook(_Once(1))
    guard = _guard(model)
    guard.step(torch.randn(4, 4), lambda batch: model(batch).mean())
    assert len(guard.events) == 1
    assert model.kept is value
    assert values().tolist() == before


@inside
def test_a_buffer_made_for_inference_gets_its_values_back() -> None:
    """It has no version, and is copied all the same."""
    with torch.inference_mode():
        model = _with_buffer(torch.ones(3))
    rewind = Rewind([model], [], [])
    rewind.record(is_fresh=True)
    with torch.inference_mode():
        model.kept.add_(1)
    rewind.restore()
    assert model.kept.tolist() == [1, 1, 1]


@inside
def test_a_buffer_that_cannot_be_put_back_is_named_and_all_else_is_back() -> None:
    """The error comes last: gradients and other buffers are as they were by then."""
    model = _with_buffer(torch.ones(1).expand(8))
    model.register_buffer("later", torch.zeros(()))
    rewind = Rewind([model], list(model.parameters()), [])
    rewind.record(is_fresh=True)
    model(torch.ones(1, 4)).sum().backward()
    model.later.add_(1)
    torch.as_strided(model.kept, (1,), (1,)).add_(1)
    with pytest.raises(RuntimeError, match="the buffer kept of Linear"):
        rewind.restore()
    assert model.weight.grad is None
    assert float(model.later) == 0


@pytest.mark.parametrize("times", [0, 1])
@inside
def test_lazy_modules_take_their_shapes_once(times: int) -> None:
    """A step that has made the parameters of a lazy module is not retried; the error names them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d())
    model[0].weight.register_hook(_Once(times))
    batch = torch.randn(8, 4)
    guard = _guard(model, splittable=False)
    if times:
        with pytest.raises(RuntimeError, match=r"the parameter 1\.weight.*lazy modules run once before the first step"):
            guard.step(batch, lambda batch: model(batch).mean())
        return
    guard.step(batch, lambda batch: model(batch).mean())
    assert int(model[1].num_batches_tracked) == 1
    assert torch.allclose(model[1].running_mean, 0.1 * model[0](batch).mean(0))


@pytest.mark.parametrize("at", [0, 1])
@inside
def test_a_buffer_that_forward_registers_is_put_back(at: int) -> None:
    """In the step that makes it, it is gone again before the next attempt; later it is a buffer like others."""

    class Counting(nn.Linear):
        def forward(self, batch: Any) -> Any:
            if not hasattr(self, "calls"):
                self.register_buffer("calls", torch.zeros(()))
            self.calls += 1
            return super().forward(batch)

    model = Counting(4, 1)
    guard = _guard(model)
    fault = _Once(0)
    model.weight.register_hook(fault)
    for number in range(3):
        fault.left = int(number == at)
        guard.step(torch.randn(4, 4), lambda batch: model(batch).mean())
        assert float(model.calls) == number + 1
    assert list(model._buffers) == ["calls"]


@pytest.mark.parametrize("is_accumulated", [False, True])
@pytest.mark.parametrize("fault", [1, 2])
@inside
def test_a_gradient_that_one_backward_adds_to_several_times_is_whole(fault: int, is_accumulated: bool) -> None:
    """A module in two reentrant checkpoints: an error between the two additions leaves the first, and no half."""
    gradients = []
    for times in (0, fault):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).double()
        guard = _guard(model, splittable=True)  # the error is raised by a hook on a gradient
        between, calls = _Once(0), [0]

        def block(batch: Any, model: Any = model) -> Any:
            return torch.tanh(model(batch))

        def loss_of(
            batch: Any, calls: Any = calls, between: Any = between, times: int = times, block: Any = block
        ) -> Any:
            if len(batch) > 4:
                raise torch.OutOfMemoryError(TEXT)
            calls[0] += 1
            if calls[0] == 2:
                between.left = times
            inner = checkpoint(block, batch, use_reentrant=True)
            inner.register_hook(between)
            return checkpoint(block, inner, use_reentrant=True).pow(2).mean()

        if is_accumulated:
            guard.step(torch.randn(4, 4).double().requires_grad_(), loss_of, update=False)
        guard.step(torch.randn(8, 4).double().requires_grad_(), loss_of)
        gradients.append(model.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-12)


@inside
def test_a_backward_that_runs_twice_adds_twice() -> None:
    """The user's `backward` runs two of PyTorch's, and memory runs out between them."""
    gradients = []
    for times in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        between = _Once(0)

        def backward(loss: Any, between: Any = between) -> None:
            loss.backward(retain_graph=True)
            between()
            (loss * 3).backward()

        guard = _guard(model, backward=backward)
        guard.step(torch.randn(4, 4).double(), lambda batch, model=model: model(batch).pow(2).mean(), update=False)
        between.left = times
        guard.step(torch.randn(4, 4).double(), lambda batch, model=model: model(batch).pow(2).mean())
        gradients.append(model.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-12)


@inside
def test_additions_that_cannot_be_told_apart_are_an_error() -> None:
    """A hook writes into the gradient besides; or two gradients are views of one tensor: never a wrong number."""
    model = nn.Linear(4, 1)
    guard, fault = _guard(model), _Once(0)
    batch = torch.randn(4, 4)
    guard.step(batch, lambda batch: model(batch).mean(), update=False)

    def halve(parameter: Any) -> None:
        parameter.grad.mul_(0.5)

    model.bias.register_post_accumulate_grad_hook(halve)
    model.weight.register_hook(fault)
    model.bias.register_post_accumulate_grad_hook(fault)
    fault.left = 1
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        guard.step(batch, lambda batch: model(batch).mean())

    model = nn.Linear(4, 1)
    flat = torch.zeros(5)
    model.weight.grad, model.bias.grad = flat[:4].view(1, 4), flat[4:]
    model.weight.register_post_accumulate_grad_hook(_Once(1))
    with pytest.raises(RuntimeError, match="are views of one tensor"):
        _guard(model).step(batch, lambda batch: model(batch).mean())


@inside
def test_items_that_do_not_come_to_a_parameter_add_nothing_again() -> None:
    """A part that failed is cut further, and one of its pieces does not use what the other does."""
    gradients = []
    for times in (0, 1):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]).double()
        guard, fault = _guard(model), _Once(0)
        model[0].weight.register_post_accumulate_grad_hook(fault)

        def loss_of(batch: Any, model: Any = model) -> Any:
            used = [model[0](one) if one[0] > 0 else model[1](one) for one in batch]
            return torch.stack(used).mean()

        batch = torch.randn(4, 4).double()
        batch[:, 0] = torch.tensor([1, 1, -1, -1])
        guard.step(batch, loss_of, update=False)
        fault.left = 2 * times
        guard.step(batch, loss_of)
        gradients.append(torch.cat([model[0].weight.grad, model[1].weight.grad]))
    assert torch.allclose(*gradients, rtol=1e-12)


@inside
def test_statistics_change_once_where_a_module_is_computed_again() -> None:
    """BatchNorm inside a checkpoint: one batch in its statistics, and those of a step without."""
    kept = []
    for times in (0, 2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).double()
        guard = _guard(model, splittable=False, checkpoint=("*",))
        model[0].weight.register_hook(_Once(times))
        guard.step(torch.randn(8, 4).double(), lambda batch, model=model: model(batch).pow(2).mean())
        assert len(guard.events) == times
        kept.append([*model[1].buffers(), *(parameter.grad for parameter in model.parameters())])
        assert int(model[1].num_batches_tracked) == 1
    assert all(map(torch.equal, *kept))


@inside
def test_a_star_is_one_level_and_nothing_is_wrapped_twice() -> None:
    """Of layers.* the layers, without the modules in them; of names that lie in one another the outer one."""

    def chosen(names: Any) -> list[str]:
        model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)])})
        found = MemorySavers([model], names, 0).checkpointed
        return [name for name, module in model.named_modules() if any(module is one for one in found)]

    assert chosen(("layers.*",)) == ["layers.0", "layers.1"]
    assert chosen("layers.*") == ["layers.0", "layers.1"]
    assert chosen(("layers.*.0",)) == ["layers.0.0", "layers.1.0"]
    assert chosen(("layers.1.0", "layers.1", "layers.0.1")) == ["layers.0.1", "layers.1"]


@inside
def test_layers_of_a_transformer_are_computed_again() -> None:
    """nn.TransformerEncoder with checkpoint="layers.*" has the gradient that it has without."""
    gradients = []
    for times in (0, 2):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        guard = _guard(model, splittable=False, checkpoint=("layers.*",))
        model.layers[0].linear1.weight.register_hook(_Once(times))
        guard.step(torch.randn(2, 3, 8), lambda batch, model=model: model(batch).pow(2).mean())
        assert len(guard.events) == times
        gradients.append(model.layers[0].linear1.weight.grad)
    assert torch.equal(*gradients)


@inside
def test_who_is_warned_of_split_statistics() -> None:
    """BatchNorm, and under "freeze" that which has nothing to freeze; never InstanceNorm, which looks at one item."""

    def warned(module: Any, choice: Any) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            norms = BatchNorms([module], choice)
            with norms.frozen():
                norms.warn_of_split(8, 2)
        return " ".join(str(one.message) for one in caught)

    assert "batchnorm='freeze' to normalise" in warned(nn.BatchNorm1d(4), None)
    assert "instead of the whole batch" in warned(nn.SyncBatchNorm(4), None)
    assert "instead of the whole batch" in warned(nn.BatchNorm1d(4, track_running_stats=False).eval(), None)
    assert "track_running_stats=False" in warned(nn.BatchNorm1d(4, track_running_stats=False), "freeze")
    assert not warned(nn.BatchNorm1d(4), "freeze")
    assert not warned(nn.BatchNorm1d(4).eval(), None)
    assert not warned(nn.BatchNorm1d(4, track_running_stats=False), "allow")
    assert not warned(nn.InstanceNorm1d(4, track_running_stats=True), None)


@inside
def test_the_warning_names_the_line_that_called_the_guard() -> None:
    """Whether a batch is split because it failed, or because it is known to need parts: the line of guard.step."""

    def warned(*, is_known: bool) -> list[str]:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        guard = _guard(model, splittable=True)  # the error is raised by a hook on a gradient
        batch = torch.randn(8, 4)
        if is_known:
            guard._ladder.plans.succeeded(form_of(batch).shape, BatchPlan(parts=2))
        else:
            model[0].weight.register_hook(_Once(3))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            guard.step(batch, lambda batch: model(batch).mean())
        return [one.filename for one in caught]

    assert warned(is_known=False) == [__file__]
    assert warned(is_known=True) == [__file__]


@inside
def test_hooks_of_all_optimizers_are_called_once_a_step() -> None:
    """The first step, which is tried out before it is taken, calls them no more often than others; they stay."""
    calls: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = ullage.Guard(model, optimizer)
    for number in (1, 2):
        guard.step(torch.randn(2, 4), lambda batch: model(batch).mean())
        assert calls == ["before", "after"] * number
    assert has_hooks(optimizer)
    for handle in handles:
        handle.remove()
    assert not has_hooks(optimizer)


@pytest.mark.parametrize("kind", ["xpu", "mps"])
@inside
def test_other_cards_have_their_numbers_back(kind: str) -> None:
    """Without such a card here: its backend is asked for the state, and given it back."""
    state, given = torch.tensor([7]), []
    backend = getattr(torch, kind)
    backend.get_rng_state = lambda *_: state
    backend.set_rng_state = lambda new, *place: given.append((new, place))
    device = torch.device(kind, 0)
    chance = RandomState([device])
    chance.record()
    chance.restore()
    assert given == [(state, (device,) if kind == "xpu" else ())]
