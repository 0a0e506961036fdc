"""Blocks that a loop keeps are told apart from those that are alive for good reason, on recordings of real torch."""

from pathlib import Path
from typing import Any

import pytest

from tests.shared.inside import inside
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.recorded.snapshot.snapshot import load_snapshot


def _net(layers: int, *, width: int = 512) -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = nn.functional.dropout(torch.relu(layer(x)), 0.1)
            return x

    return Net().cuda()


def _train(model: Any, steps: int, rows: int) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(rows, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _evaluate_with_grad() -> None:
    import torch

    model, kept = _net(6), []
    while True:
        kept.append(model(torch.randn(64 << 10, 512, device="cuda")))


def _evaluate_with_grad_after_training() -> None:
    import torch

    model, kept = _net(12), []
    _train(model, 8, 32 << 10)
    while True:
        kept.append(model(torch.randn(32 << 10, 512, device="cuda")))


def _never_empty_a_cache() -> None:
    import torch

    cache = []
    while True:
        cache.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))


def _move_a_model_that_is_too_large() -> None:
    import torch
    from torch import nn

    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(400)])
    model.to_empty(device="cuda")


def _make_parameters_on_the_card() -> None:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(4096, 4096, device="cuda"))

    nn.Sequential(*[Block() for _ in range(400)])


def _train_a_deep_net() -> None:
    _train(_net(400), 1, 64 << 10)


def _train_a_deep_net_without_a_module_around_it() -> None:
    import torch

    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(600)]
    x = torch.randn(64 << 10, 512, device="cuda")
    for layer in layers:
        h = torch.relu(x)
        x = x + layer(h)


def _train_on_sequences_that_become_longer() -> None:
    import torch

    cell = torch.nn.GRUCell(512, 512).cuda()
    optimizer = torch.optim.AdamW(cell.parameters())
    for step in range(100):
        state = torch.zeros(8192, 512, device="cuda")
        for _ in range(50 + step * 5):
            state = cell(torch.randn(8192, 512, device="cuda"), state)
        state.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@inside
def _record(what: str, path: str, entries: int) -> None:
    import torch

    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
    try:
        globals()[what]()
    except torch.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot(path)


def _explained(what: Any, folder: Path, entries: int = 1_000_000) -> Explanation:
    _record(what=what.__name__, path=str(folder / "oom.pickle"), entries=entries)
    return explain(load_snapshot(folder / "oom.pickle").devices[0])


@pytest.mark.parametrize("what", [_evaluate_with_grad, _evaluate_with_grad_after_training, _never_empty_a_cache])
def test_a_loop_that_keeps_what_it_makes_is_said_first(what: Any, tmp_path: Path) -> None:
    """Line, count, bytes and since when; what to change; and a setting is no cure, whatever it lets through."""
    explanation = _explained(what, tmp_path)
    assert (explanation.cause, explanation.headline) == (Cause.ACCUMULATION, "MEMORY LEAK IN A LOOP")
    accumulation = explanation.accumulation
    assert accumulation is not None
    held = {holder.line: holder for holder in explanation.holders}[accumulation.line]
    assert 0 <= held.blocks - accumulation.blocks <= 1, "the last step of a training has left one at the same line"
    assert accumulation.bytes > 0.5 * explanation.evidence["allocated_bytes"]
    assert explanation.sentence.startswith(
        f"A loop does not free its memory: {accumulation.blocks:,} blocks that were allocated at {accumulation.line}"
    )
    assert "They were allocated in the last " in explanation.sentence
    assert "under torch.no_grad()" in explanation.sentence
    assert "export" not in explanation.sentence
    for remedy in explanation.remedies:
        assert remedy.proved
        if remedy.setting and remedy.fits:
            assert f"The setting {remedy.setting} only delays the failure by" in explanation.sentence
            break
    [cure] = [remedy for remedy in explanation.remedies if (remedy.action or "").startswith("free these blocks")]
    assert cure.fits
    assert cure.peak_reserved_bytes < explanation.evidence["room_bytes"] // 2
    assert "keys" not in explanation.to_json()["accumulation"]


def test_the_line_that_calls_the_model_is_named(tmp_path: Path) -> None:
    accumulation = _explained(_evaluate_with_grad, tmp_path).accumulation
    lines = Path(__file__).read_text().splitlines()
    assert accumulation is not None
    places = [place.rpartition(":") for place in (accumulation.line, accumulation.called_at)]
    assert "torch.relu(layer(x))" in lines[int(places[0][2]) - 1]
    assert "kept.append(model(" in lines[int(places[1][2]) - 1]


@pytest.mark.parametrize(
    "what",
    [
        _move_a_model_that_is_too_large,
        _make_parameters_on_the_card,
        _train_a_deep_net,
        _train_a_deep_net_without_a_module_around_it,
        _train_on_sequences_that_become_longer,
    ],
)
def test_parameters_and_the_activations_of_one_step_are_no_pile(what: Any, tmp_path: Path) -> None:
    """Hundreds of equal blocks of one line, all of them needed."""
    explanation = _explained(what, tmp_path)
    assert max(holder.blocks for holder in explanation.holders) > 100
    assert explanation.accumulation is None
    assert explanation.cause is not Cause.ACCUMULATION


def test_the_end_of_a_pile_tells_it_where_its_beginning_is_lost(tmp_path: Path) -> None:
    """A history that keeps the last thousand entries: since before it began."""
    _record_the_last(path=str(tmp_path / "oom.pickle"), entries=1000)
    explanation = explain(load_snapshot(tmp_path / "oom.pickle").devices[0])
    assert explanation.cause is Cause.ACCUMULATION
    assert explanation.accumulation.is_older
    assert "some of them before recording began" in explanation.sentence


@inside
def _record_the_last(path: str, entries: int) -> None:
    import torch

    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
    model, kept = torch.nn.Linear(512, 512).cuda(), []
    try:
        while True:
            kept.append(model(torch.randn(8 << 10, 512, device="cuda")))
    except torch.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot(path)


def _train_and_keep_outputs_of_growing_length() -> None:
    import torch

    model, kept = torch.nn.Linear(1024, 1024).cuda(), []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(200):
        rows = 16 * 1024 + 1024 * step
        output = model(torch.randn(rows, 1024, device="cuda"))
        output.square().mean().backward()
        kept.append(output.detach()[: rows * 5 // 8].clone())
        del output
        optimizer.step()
        optimizer.zero_grad()


def test_where_every_step_keeps_more_a_setting_is_said_to_put_the_end_off(tmp_path: Path) -> None:
    """Also where memory ran out since it was in pieces: the line to paste, and for how many steps more it is good."""
    explanation = _explained(_train_and_keep_outputs_of_growing_length, tmp_path)
    assert explanation.growth is not None
    assert explanation.cause in (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS)
    assert "only delays the failure by about " in explanation.sentence
    assert "export PYTORCH_CUDA_ALLOC_CONF=" in explanation.sentence


def _train_and_keep_hundreds_of_outputs() -> None:
    import torch

    model, kept = torch.nn.Linear(1024, 1024).cuda(), []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10000):
        output = model(torch.randn(8192 + 64 * (step % 7), 1024, device="cuda"))
        output.square().mean().backward()
        kept.append(output.detach()[:2048].clone())
        del output
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("entries", [1_000_000, 2000])
def test_hundreds_of_steps_that_keep_something_are_a_leak_however_it_ends(tmp_path: Path, entries: int) -> None:
    """A setting lets the request through that failed, since memory is in pieces by then; it comes second.

    So it is where history covers only the last forty steps: blocks have their lines all the same.
    """
    explanation = _explained(_train_and_keep_hundreds_of_outputs, tmp_path, entries)
    assert f"{explanation.growth.line_blocks:,} blocks of that line are alive" in explanation.sentence
    assert explanation.growth.line_blocks > 1000
    assert explanation.cause is Cause.LEAK
    assert explanation.sentence.startswith("Memory grows: every step keeps 8.0 MiB more")
    assert "export" not in explanation.sentence
    assert "Free these blocks" in explanation.sentence
