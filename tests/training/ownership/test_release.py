"""What `ullage.release` does not take: whatever was not passed, wherever what was passed leads."""

import warnings
from typing import Any

import pytest

from tests.shared.inside import inside

MIB = 1 << 20


def _made() -> tuple[Any, Any]:
    """Return two models on the card."""
    from torch import nn

    return nn.Linear(512, 512, bias=False).cuda(), nn.Linear(512, 512, bias=False).cuda()


def _is_there(tensor: Any) -> bool:
    return bool(tensor.untyped_storage().nbytes())


@inside
def test_a_view_of_a_result_takes_its_graph_but_what_has_a_name() -> None:
    """Parameters, leaves, inputs and named intermediates that the graph has saved stay."""
    import torch

    from ullage.training.ownership.release import release

    model, _ = _made()
    x = torch.zeros(4, 512, device="cuda")
    weights = torch.zeros(512, 512, device="cuda", requires_grad=True)
    hidden = model(x).relu()
    result = ((hidden @ model.weight.t()) @ weights).exp().exp()[0]
    release(result)
    assert all(map(_is_there, (model.weight, x, hidden, weights)))
    assert not _is_there(result)


@inside
def test_a_module_leads_to_no_other_model() -> None:
    """Not by methods, closures, hooks, back references, schedulers, or functions that a loader collates with."""
    import torch

    from ullage.training.ownership.release import release

    kept, model = _made()
    weight = kept.weight
    model.callback = kept.forward
    model.__dict__["parent"] = kept
    model.register_forward_hook(lambda module, given, output: output @ weight)
    containers: dict[str, Any] = {}
    containers["self"] = containers
    model.register_forward_hook(lambda *_: containers)
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: float(kept.training))
    loader = torch.utils.data.DataLoader([1, 2], collate_fn=lambda batch: kept(batch))
    release(model, scheduler, loader)
    assert _is_there(kept.weight)
    assert not _is_there(model.weight)


@inside
def test_what_shared_memory_shares_it_on_the_host() -> None:
    """Tied parameters, a view and its base; an expanded tensor stays as small as it was."""
    import torch
    from torch import nn

    from ullage.training.ownership.release import release

    first, second = _made()
    second.weight = nn.Parameter(first.weight.detach())
    base = torch.zeros(MIB, device="cuda")
    view = base[10:20]
    expanded = torch.zeros(4, 1, device="cuda").expand(4, MIB)
    with torch.inference_mode():
        certificate = release([first, second, base, view, expanded], to="cpu")
    assert certificate.is_empty
    assert first.weight.data_ptr() == second.weight.data_ptr()
    view.fill_(3)
    assert float(base[10]) == 3
    assert expanded.untyped_storage().nbytes() == 16
    first(torch.zeros(1, 512)).sum().backward()


@inside
def test_what_cannot_be_moved_is_refused_before_anything_has_moved() -> None:
    """One sentence, and nothing has changed."""
    import torch

    from ullage.base.errors import UsageError
    from ullage.training.ownership.release import release

    model, _ = _made()
    with warnings.catch_warnings(action="ignore"):
        rows = torch.zeros(4, 4, device="cuda").to_sparse_csr()
    with pytest.raises(UsageError, match="cannot be moved in place"):
        release(model, rows, to="cpu")
    assert model.weight.is_cuda


@inside
def test_no_code_of_a_subclass_runs() -> None:
    """`__torch_function__` of a subclass or a mode is not called, and lazy modules are left as they are."""
    import torch
    from torch import nn
    from torch.overrides import TorchFunctionMode

    from ullage.training.ownership.owners import owners
    from ullage.training.ownership.release import release

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt("user code was run")

    class LoudMode(TorchFunctionMode):  # type: ignore[misc]  # torch has no types for it
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise KeyboardInterrupt("user code was run")

    loud = torch.zeros(MIB, device="cuda").as_subclass(Loud)
    with LoudMode():
        holdings = owners(0)
    assert "'loud'" in holdings[0].path
    release(loud, nn.Sequential(nn.Linear(5, 5), nn.LazyLinear(10)).cuda())
    assert torch.cuda.memory_allocated() == 0


@inside
def test_a_model_runs_again_with_other_weights() -> None:
    """As after `load_state_dict(..., assign=True)`."""
    import torch

    from ullage.base.errors import UsageError
    from ullage.training.ownership.release import release

    model, _ = _made()
    kept = {name: value.cpu() for name, value in model.state_dict().items()}
    release(model)
    with pytest.raises(UsageError, match=r"ullage\.release\(\) has freed"):
        model(torch.zeros(1, 512, device="cuda"))
    model.load_state_dict({name: value.cuda() for name, value in kept.items()}, assign=True)
    assert model(torch.zeros(1, 512, device="cuda")).shape == (1, 512)


@inside
def test_workers_of_a_loop_that_runs_are_ended() -> None:
    """Nobody but the loop itself has the iterator of the loader."""
    import multiprocessing

    import torch

    from ullage.training.ownership.release import release

    loader = torch.utils.data.DataLoader(list(range(1000)), num_workers=1)
    other = torch.utils.data.DataLoader(list(range(1000)), num_workers=1)
    kept = iter(other)
    seen = 0
    for _ in loader:
        seen += 1
        assert len(multiprocessing.active_children()) == 2
        release(loader)
        assert len(multiprocessing.active_children()) == 1
    assert seen < 10
    assert next(kept) is not None


@inside
def test_a_learning_rate_on_the_card_is_the_optimizers() -> None:
    import torch

    from ullage.training.ownership.release import release

    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.Adam([weight], capturable=True)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="cuda")
    assert release(optimizer).after_bytes == 512
    assert _is_there(weight)
