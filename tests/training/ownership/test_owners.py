"""Rules of `ullage.owners` and `ullage.release` beside the corpus of scenarios."""

import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.inside import inside
from tests.training.ownership.scenarios.scenario import is_from

ROOT = Path(__file__).parents[3]
MANY = 100_000
MIB = 1 << 20


def _loss(model: Any) -> Any:
    import torch

    return model(torch.zeros(512, 512, device="cuda")).sum()


def _model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()


@inside
def test_what_was_released_says_so() -> None:
    """A tensor, a view of it, a model, an optimizer raise an error that names `release`; the card is left alone."""
    import torch

    from ullage.base.errors import UsageError
    from ullage.training.ownership.release import release

    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    _loss(model).backward()
    optimizer.step()
    batch = torch.ones(512, 512, device="cuda")
    row = batch[3]
    assert release(model, optimizer, batch).is_empty
    for use in (
        lambda: batch + 1,
        lambda: row * 2,
        batch.cpu,
        batch.clone,
        lambda: batch.copy_(torch.ones(512, 512)),
        lambda: torch._foreach_add([batch], 1),
        lambda: model(torch.zeros(1, 512)),
        optimizer.step,
    ):
        with pytest.raises((RuntimeError, UsageError), match=r"ullage\.release\(\) has freed"):
            use()
    assert torch.cuda.memory_allocated() == 0


@inside
def test_what_is_on_the_host_survives() -> None:
    """A `state_dict` that was copied to the CPU is whole, and makes a new model."""
    import torch

    from ullage.training.ownership.release import release

    model = _model()
    kept = {name: value.cpu() for name, value in model.state_dict().items()}
    assert release(model, kept).is_empty
    again = _model()
    again.load_state_dict(kept)
    assert _loss(again).device.type == "cuda"
    assert all(value.device == torch.device("cpu") for value in kept.values())


@inside
def test_moved_to_the_cpu_a_run_goes_on() -> None:
    """`to="cpu"` leaves nothing on the card, and a step of model and optimizer runs on the host with their values."""
    import torch

    from ullage.training.ownership.release import release

    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    _loss(model).backward()
    optimizer.step()
    assert release(model, optimizer, to="cpu").is_empty
    devices = {value.device.type for own in optimizer.state.values() for value in own.values()}
    assert devices == {"cpu"}
    model(torch.ones(4, 512)).sum().backward()
    optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@inside
def test_an_optimizer_gives_up_its_state_alone() -> None:
    """Its parameters are the model's, and so is a model that a hook leads to its own."""
    import torch

    from ullage.training.ownership.release import release

    model, other = _model(), _model()
    model.register_forward_hook(lambda *_: other.training)
    optimizer = torch.optim.Adam(other.parameters())
    _loss(other).backward()
    optimizer.step()
    release(optimizer)
    assert not optimizer.state
    release(model)
    assert math.isfinite(float(_loss(other).detach()))  # an emulated card draws it, but the model runs


@inside
def test_a_bad_argument_is_one_sentence() -> None:
    """What was passed, and what was expected."""
    from ullage.base.errors import UsageError
    from ullage.training.ownership.owners import owners
    from ullage.training.ownership.release import release

    with pytest.raises(UsageError, match="expected 'cpu'"):
        release(to="meta")
    for size in (-1, 1.5, True, "much"):
        with pytest.raises(UsageError):
            owners(size)  # type: ignore[arg-type]


@inside
def test_smaller_holders_are_one_row() -> None:
    """Rows below `min_bytes` are told together, and the sum stays."""
    import torch

    from ullage.training.ownership.owners import owners

    kept = {f"name {number}": torch.zeros(1 << 10, device="cuda") for number in range(8)}
    large = torch.zeros(1 << 20, device="cuda")
    holdings = owners("1MiB")
    assert [row.kind for row in holdings] == ["local", "smaller"]
    assert "'large'" in holdings[0].path
    assert holdings.total_bytes == torch.cuda.memory_allocated() == large.nbytes + sum(x.nbytes for x in kept.values())


@inside
def test_four_times_the_tensors_take_about_four_times_as_long() -> None:
    """And sum to the byte. benchmarks/ownership/many.py measures the seconds."""
    import torch

    from ullage.training.ownership.owners import owners

    kept: list[torch.Tensor] = []
    taken = []
    for count in (MANY // 4, MANY):
        kept += [torch.empty(1, device="cuda") for _ in range(count - len(kept))]
        began = time.process_time()
        holdings = owners(0)
        taken.append(time.process_time() - began)
    assert holdings.total_bytes == torch.cuda.memory_allocated() == 512 * len(kept)
    assert [row.blocks for row in holdings] == [MANY]
    assert taken[1] < 0.5 + 8 * taken[0]


@pytest.mark.skipif(is_from("2.15"), reason="the document shows what is so until torch 2.15: cuBLAS's workspaces")
def test_the_documents_example_says_what_the_document_shows() -> None:
    """docs/release.md quotes the example's output whole."""
    script = ROOT / "examples" / "who_holds_what.py"
    done = client.run([sys.executable, script, "T4"], timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "docs" / "release.md").read_text(encoding="utf-8")


@inside
def test_a_metaclass_of_the_users_is_not_asked() -> None:
    """Its `__mro__`, `__name__` and `__dict__` may be properties, its `__subclasscheck__` a method."""
    import torch

    from ullage.training.ownership.owners import owners
    from ullage.training.ownership.release import release

    asked = []

    def _noted(name: str) -> Any:
        return property(lambda kind: asked.append(name))

    class Meta(type):
        __mro__ = _noted("__mro__")
        __name__ = _noted("__name__")
        __dict__ = _noted("__dict__")

        def __instancecheck__(cls, one: Any) -> bool:
            asked.append("__instancecheck__")
            return True

        def __subclasscheck__(cls, one: Any) -> bool:
            asked.append("__subclasscheck__")
            return True

    class Batch(metaclass=Meta):
        def __init__(self) -> None:
            self.images = torch.zeros(MIB, device="cuda")

    batch = Batch()
    [row] = owners()
    assert row.path.endswith("local 'batch' -> Batch.images")
    assert release(batch).is_empty
    assert asked == []
