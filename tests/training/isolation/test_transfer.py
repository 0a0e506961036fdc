"""Values go through a parcel and are the same: tensors with what they share, and errors of every kind of class."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.shared.inside import inside
from ullage.training.isolation import transfer


def sent(value: Any, *, keep_device: bool = False) -> Any:
    file = transfer.new_file()
    try:
        assert transfer.read_note(file) is None
        transfer.write(file, value, note={"of": "a test"}, keep_device=keep_device)
        assert transfer.read_note(file) == {"of": "a test"}
        return transfer.read_value(file)
    finally:
        os.close(file)


@inside
def test_tensors_keep_what_they_share() -> None:
    """Views of one storage, small and large; parameters and modules; empty ones, and forms without one storage."""
    import torch

    for length in (10, 1 << 18):
        x = torch.arange(length)
        all_of_it, rest, again = sent([x, x[1:], x])
        assert all_of_it is again
        assert torch.equal(rest, x[1:])
        all_of_it[1] = 77
        assert rest[0] == 77
        assert x[1] == 1
    linear = torch.nn.Linear(300, 300)
    module = sent(linear)
    assert type(module.weight) is torch.nn.Parameter
    assert torch.equal(module(torch.ones(300)), linear(torch.ones(300)))
    assert sent(torch.empty(0, 3)).shape == (0, 3)
    assert torch.equal(sent(torch.ones(3, dtype=torch.bfloat16)), torch.ones(3, dtype=torch.bfloat16))
    assert sent(torch.empty(5, device="meta")).shape == (5,)
    torch.sparse.check_sparse_tensor_invariants.disable()
    assert torch.equal(sent(torch.eye(300).to_sparse()).to_dense(), torch.eye(300))


@inside
def test_a_tensor_on_the_card_goes_to_the_cpu_or_to_the_card() -> None:
    """On its way it takes nothing there but what arrives."""
    import torch

    x = torch.ones(1 << 20, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    on_host = sent({"x": x, "part": x[:5]})
    assert on_host["x"].device.type == "cpu"
    assert on_host["x"].requires_grad
    assert on_host["part"].untyped_storage().data_ptr() == on_host["x"].untyped_storage().data_ptr()
    assert torch.cuda.memory_allocated() == before
    on_card = sent(x, keep_device=True)
    assert (on_card.device, on_card.shape) == (x.device, x.shape)
    assert torch.cuda.memory_allocated() == before + x.nbytes


@inside
def test_pytorchs_out_of_memory_error_travels() -> None:
    """With its type, without what its traceback holds."""
    import torch

    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 40, device="cuda")
    error = sent(caught.value)
    assert type(error) is torch.OutOfMemoryError
    assert str(error) == str(caught.value)
    assert error.__traceback__ is None


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OSError(2, "gone", "file"), ("filename", "file")),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ("reason", "bad")),
        (SystemExit(3), ("code", 3)),
        (ExceptionGroup("two", [KeyError("a"), ValueError("b")]), ("message", "two")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pythons_own_errors_keep_what_they_know(error: BaseException, state: tuple[str, Any]) -> None:
    again = sent(error)
    assert type(again) is type(error)
    assert getattr(again, state[0]) == state[1]
    assert str(again) == str(error)


class AsksForMore(Exception):
    """Its class cannot be called with what it tells its base."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class TellsNothing(Exception):
    """Its base knows no argument."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


@pytest.mark.parametrize("make", [lambda: AsksForMore(3, why="no"), lambda: TellsNothing(4)])
def test_errors_whose_classes_cannot_make_them_again_travel(make: Callable[[], Any]) -> None:
    """Inside of others too, with their attributes and notes."""
    error = make()
    error.add_note("a note")
    (again,) = sent(ExceptionGroup("some", [error])).exceptions
    assert type(again) is type(error)
    assert (str(again), again.code, again.__notes__) == (str(error), error.code, ["a note"])


def test_a_writer_that_fails_leaves_an_empty_parcel() -> None:
    """So that nobody reads half of a value, even where a large buffer had been written already."""
    import numpy as np

    file = transfer.new_file()
    with pytest.raises(TypeError, match="generator"):
        transfer.write(file, [np.ones(1 << 18), (i for i in ())], note={}, keep_device=False)
    assert os.fstat(file).st_size > 1 << 20
    assert transfer.read_note(file) is None
    os.close(file)
