"""A batch of any form is taken in parts of the same form, and is the user's own again after every attempt."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    from collections import OrderedDict, UserDict, namedtuple
    from dataclasses import dataclass, field

    import torch
    from torch import nn

    import ullage
    from tests.training.guard.faults import TEXT

    @dataclass(frozen=True)
    class Frozen:
        """A batch that cannot be changed, with what is the same for all items."""

        x: Any
        y: Any
        names: list[str]
        scale: float = 2.0
        made: int = field(default=0, init=False)

    Named = namedtuple("Named", ["x", "y", "names"])

    class Encoding(UserDict):
        """A mapping that knows more than its elements, as tokenizers return it."""

        def __init__(self, data: Any, encodings: Any = None, *, rows: int = 0) -> None:
            super().__init__(data)
            self.encodings, self.rows = encodings, rows

        def __getattr__(self, name: str) -> Any:
            try:
                return self.data[name]
            except KeyError:
                raise AttributeError(name) from None


ITEMS = 7
FORMS = ("dict", "ordered", "frozen dataclass", "named tuple", "encoding", "list", "nested", "tensor")


def _batch(form: str) -> tuple[Any, Any]:
    """A batch, and what reads x, y and names from it."""
    x, y, names = torch.arange(ITEMS * 3.0).view(ITEMS, 3), torch.ones(ITEMS, 1), [f"item {n}" for n in range(ITEMS)]
    by_key = lambda b: (b["x"], b["y"], b["names"])  # noqa: E731
    by_name = lambda b: (b.x, b.y, b.names)  # noqa: E731
    return {
        "dict": ({"x": x, "y": y, "names": names, "scale": 2.0, "none": None}, by_key),
        "ordered": (OrderedDict(x=x, y=y, names=tuple(names)), lambda b: (*by_key(b)[:2], list(b["names"]))),
        "frozen dataclass": (Frozen(x, y, names), by_name),
        "named tuple": (Named(x, y, names), by_name),
        "encoding": (Encoding({"x": x, "y": y, "names": names}, "more", rows=3), by_name),
        "list": ([x, y, names], tuple),
        "nested": ({"in": [{"x": x}, (y,)], "names": names}, lambda b: (b["in"][0]["x"], b["in"][1][0], b["names"])),
        "tensor": (x, lambda b: (b, torch.ones(len(b), 1), [f"item {int(n)}" for n in b[:, 0] / 3])),
    }[form]


@pytest.mark.parametrize("form", FORMS)
@inside
def test_a_part_has_the_form_of_the_batch(form: str) -> None:
    """Every part is of the batch's own type, with its rows of every tensor and its elements of every list."""
    batch, read = _batch(form)
    model = nn.Linear(3, 1)
    seen: list[tuple[int, list[str]]] = []

    def loss_of(part: Any) -> torch.Tensor:
        x, y, names = read(part)
        if len(x) > 3:
            raise torch.OutOfMemoryError(TEXT)
        assert type(part) is type(batch)
        assert len(x) == len(y) == len(names)
        assert [f"item {int(n)}" for n in x[:, 0] / 3] == list(names)
        if form == "encoding":
            assert (part.encodings, part.rows) == ("more", 3)
        seen.extend(names)
        return ((model(x) - y) ** 2).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ullage.Guard(model, optimizer, splittable=True, log=lambda _: None).step(batch, loss_of)
    assert seen == [f"item {n}" for n in range(ITEMS)]


@inside
def test_items_may_lie_along_any_dimension() -> None:
    """With batch_dim=1 parts are cut there; a tensor that has no such dimension goes to every part."""
    model, seen = nn.Linear(2, 1), []

    def loss_of(batch: Any) -> torch.Tensor:
        seen.append((batch["x"].shape, batch["table"].shape))
        if batch["x"].size(1) > 2:
            raise torch.OutOfMemoryError(TEXT)
        return model(batch["x"]).mean()

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), batch_dim=1, log=lambda _: None)
    guard.step({"table": torch.ones(4), "x": torch.randn(5, 4, 2)}, loss_of)
    assert seen[-2:] == [((5, 2, 2), (4,))] * 2


@inside
def test_a_batch_without_items_is_not_split() -> None:
    """Where no tensor has the dimension there is nothing to cut: the error comes through."""
    model = nn.Linear(2, 1)

    def loss_of(batch: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError(TEXT)

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None)
    for batch in ({"x": torch.tensor(1.0)}, ["text"], {}, None, 3):
        with pytest.raises(torch.OutOfMemoryError):
            guard.step(batch, loss_of)
    assert {event.action for event in guard.events} == {
        "undone, and retried unchanged",
        "retried after empty_cache",
        "gave up; everything is as before the step",
    }


@inside
def test_a_loss_function_may_take_the_batch_apart() -> None:
    """One that pops the labels and deletes from lists finds all of them there again, in each attempt and afterwards."""
    model, failures = nn.Linear(3, 1), [True, True, True]
    batch = {"x": torch.randn(4, 3), "y": torch.randn(4, 1), "more": [torch.ones(4), torch.zeros(4)]}

    def loss_of(part: Any) -> torch.Tensor:
        y = part.pop("y")
        part["more"].pop()
        part["x"] = part["x"].double()
        part["new"] = 1
        if failures and failures.pop():
            raise torch.OutOfMemoryError(TEXT)
        return ((model(part["x"].float()) - y) ** 2).mean()

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None)
    guard.step(batch, loss_of)
    assert guard.events[-1].parts == 2
    assert list(batch) == ["x", "y", "more"]
    assert len(batch["more"]) == 2
    assert batch["x"].dtype == torch.float32


@inside
def test_a_loss_function_that_writes_into_the_batch_is_refused() -> None:
    """What it has written cannot be put back: the error comes through at once and says so."""
    model, tries = nn.Linear(3, 1), []

    def loss_of(batch: Any) -> torch.Tensor:
        tries.append(1)
        batch["x"].mul_(2)
        raise torch.OutOfMemoryError(TEXT)

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda _: None)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        guard.step({"x": torch.randn(4, 3)}, loss_of)
    assert tries == [1]
    assert caught.value.__notes__[0] == (
        "The loss function writes into the batch, which cannot be undone; write into a copy instead."
    )


@inside
def test_a_batch_is_not_copied() -> None:
    """Whole or in parts, the loss function gets the memory of the batch itself."""
    model, seen = nn.Linear(3, 1), []
    batch = {"x": torch.randn(4, 3)}

    def loss_of(part: Any) -> torch.Tensor:
        seen.append(part["x"].untyped_storage().data_ptr())
        if len(part["x"]) > 2:
            raise torch.OutOfMemoryError(TEXT)
        return model(part["x"]).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ullage.Guard(model, optimizer, splittable=True, log=lambda _: None).step(batch, loss_of)
    assert set(seen) == {batch["x"].untyped_storage().data_ptr()}
    assert len(seen) == 5
