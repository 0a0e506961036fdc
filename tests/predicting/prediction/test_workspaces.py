"""Sizes that only a real card's handle knows: each is a guess with an interval, and the prediction carries it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.inside import inside
from ullage.base.units import KIB, MIB
from ullage.gpu.emulator import library
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.predicting.prediction.data.prediction import CudnnUse, Guess, Step, Verdict
from ullage.predicting.prediction.data.run_result import Measured
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict.workspace import cudnn_of, doubt_of, notes_of, rows_of

TORCH = TorchBuild(version="2.11.0", cuda=(13, 0), cudnn=91900, folder=Path("torch"), planning=("nvidia-cudnn-cu13",))
NONE_EXPECTED = {"expected_below_bytes": 0}


def guessed() -> dict[str, dict[str, int]]:
    """What this process guessed."""
    return {kind: asdict(figures) for kind, figures in library.guesses().items()}


@inside
def test_what_an_rnn_takes_is_told_with_its_interval() -> None:
    """An LSTM's reserve and workspace: the least is what the layers hand to one another, the most more than guessed."""
    import torch

    lstm = torch.nn.LSTM(256, 512, num_layers=2).cuda()
    lstm(torch.randn(50, 16, 256, device="cuda"))[0].sum().backward()
    rnn = guessed()["rnn"]
    hidden = 50 * 16 * 512 * 4
    reserve = hidden * (2 * 5 + 1)
    workspace = rnn["guessed_bytes"] - reserve
    assert workspace > 0
    assert rnn["guessed_bytes"] - rnn["below_bytes"] == hidden
    assert rnn["above_bytes"] == 2 * workspace + hidden * 2 * 5 + hidden // 4


@inside
def test_reserves_add_up_until_their_backward() -> None:
    """Layers that wait for backward are a reserve each; steps with a backward each are one."""
    import torch

    gru = torch.nn.GRU(64, 64).cuda()
    x = torch.randn(20, 8, 64, device="cuda")
    seen = []
    for _ in range(3):
        gru(x)[0].sum().backward()
        seen.append(guessed()["rnn"]["guessed_bytes"])
    kept = [gru(x)[0] for _ in range(3)]
    assert kept
    assert seen[0] == seen[2]
    assert guessed()["rnn"]["guessed_bytes"] == seen[0] + 2 * 20 * 8 * 64 * 6 * 4


@inside
def test_reserves_that_no_backward_follows_do_not_pile_up() -> None:
    """Training mode without gradients gives its memory back, so a hundred forwards count as one or two."""
    import torch

    gru = torch.nn.GRU(64, 64).cuda()
    x = torch.randn(20, 8, 64, device="cuda")
    with torch.no_grad():
        gru(x)
        first = guessed()["rnn"]["guessed_bytes"]
        for _ in range(100):
            gru(x)
    assert guessed()["rnn"]["guessed_bytes"] <= first + 20 * 8 * 64 * 6 * 4


@inside
def test_a_dropout_state_is_at_most_curands_own() -> None:
    """An LSTM with dropout makes one state: up to 48 bytes for each thread that the card holds."""
    import torch

    lstm = torch.nn.LSTM(8, 8, num_layers=2, dropout=0.5).cuda()
    lstm(torch.randn(5, 2, 8, device="cuda"))
    half = 24 * 40 * 1024
    assert guessed()["dropout"] == {
        "count": 1,
        "guessed_bytes": half,
        "below_bytes": half,
        "above_bytes": half,
        **NONE_EXPECTED,
    }


@inside
def test_a_transform_of_an_awkward_length_may_take_eight_copies() -> None:
    """Lengths of factors up to 7 take up to 2 copies of the transform; 1031 is a prime."""
    import torch

    torch.fft.fft(torch.zeros(4, 1024, dtype=torch.complex64, device="cuda"))
    size = 4 * 1024 * 8
    assert guessed()["fft"] == {
        "count": 1,
        "guessed_bytes": size,
        "below_bytes": size,
        "above_bytes": size,
        **NONE_EXPECTED,
    }
    torch.fft.fft(torch.zeros(4, 1031, dtype=torch.complex64, device="cuda"))
    assert guessed()["fft"]["above_bytes"] == 7 * 4 * 1031 * 8


@inside
def test_a_ctc_loss_is_two_tables_and_at_most_three_twice_as_wide() -> None:
    """One place of a table for each step, sequence and state."""
    import torch

    probabilities = torch.randn(50, 4, 20, device="cuda").log_softmax(2)
    labels = torch.ones(40, dtype=torch.int32)
    torch.nn.functional.ctc_loss(probabilities, labels, (50,) * 4, (10,) * 4)
    table = 50 * 4 * (2 * 10 + 1)
    assert guessed()["ctc"] == {
        "count": 1,
        "guessed_bytes": 8 * table,
        "below_bytes": 8 * table,
        "above_bytes": 16 * table,
        **NONE_EXPECTED,
    }


@pytest.mark.parametrize("layout", ["channels_last", "contiguous_format"])
@inside
def test_a_batch_norm_is_a_guess_in_channels_last_half_only(layout: str) -> None:
    """cuDNN's documents name a reserve for that one case: at most a bit for each element that waits for backward."""
    import torch

    norms = torch.nn.Sequential(*(torch.nn.BatchNorm2d(64) for _ in range(3))).cuda()
    x = torch.randn(8, 64, 32, 32, device="cuda", dtype=torch.half).to(memory_format=getattr(torch, layout))
    for _ in range(2):
        norms(x.requires_grad_()).sum().backward()
    told = guessed()
    if layout != "channels_last":
        assert told == {}
        return
    sums = 2 * 4 * 64 * 40
    assert told["batch_norm"]["guessed_bytes"] == 0
    assert told["batch_norm"]["above_bytes"] == sums + 3 * 8 * 64 * 32 * 32 // 8


@inside
def test_batch_norms_that_no_backward_follows_do_not_pile_up() -> None:
    """In training mode without gradients inputs go as outputs are made: memory given anew is not counted twice."""
    import torch

    norms = torch.nn.Sequential(*(torch.nn.BatchNorm2d(64) for _ in range(30))).cuda()
    x = torch.randn(8, 64, 33, 32, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    one = 8 * 64 * 33 * 32 // 8
    with torch.no_grad():
        for height in range(33, 2, -2):
            norms(x[:, :, :height].contiguous(memory_format=torch.channels_last))
    assert guessed()["batch_norm"]["above_bytes"] <= 2 * 4 * 64 * 40 + 8 * one


@inside
def test_a_net_without_any_of_it_has_no_guess() -> None:
    """A linear layer and a convolution make no guess."""
    import torch

    x = torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 8, 8, device="cuda"))
    torch.nn.Linear(6, 6).cuda()(x).sum().backward()
    assert guessed() == {}


def test_a_prediction_has_both_ends_of_its_guesses(tmp_path: Any) -> None:
    """The interval is the context's and the guesses' together."""
    script = tmp_path / "rnn.py"
    script.write_text("""
import torch
model = torch.nn.LSTM(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(10, 4, 64, device="cuda"))[0].sum().backward()
    optimizer.step()
""")
    found = client.call(predict, Request.of(script, gpu="T4", steps=3, context=100 * MIB))
    (guess,) = found.guesses
    assert guess.kind == "rnn"
    assert guess.low_bytes < guess.guessed_bytes < guess.high_bytes
    counted = found.peak_reserved_bytes + 100 * MIB
    ends = (counted - guess.guessed_bytes + guess.low_bytes, counted - guess.guessed_bytes + guess.high_bytes)
    assert found.interval_bytes == ends


@pytest.mark.parametrize(
    ("batch", "verdict"), [(1600, Verdict.UNKNOWN), (3000, Verdict.UNKNOWN), (30000, Verdict.DOES_NOT_FIT)]
)
def test_running_out_by_less_than_a_guess_cannot_be_judged(tmp_path: Any, batch: int, verdict: Verdict) -> None:
    """Three LSTMs keep a guessed reserve each: less of it may be enough for the third, or the first, but not for x."""
    script = tmp_path / "rnn.py"
    script.write_text(f"""
import torch
layers = [torch.nn.LSTM(512, 512).cuda() for _ in range(3)]
x = torch.zeros(100, {batch}, 512, device="cuda", requires_grad=True)
kept = [layer(x)[0] for layer in layers]
""")
    found = client.call(predict, Request.of(script, gpu="4GiB", steps=3, context=100 * MIB))
    assert found.oom is not None
    assert found.verdict is verdict
    assert ("is an estimate" in found.reason) == (verdict is Verdict.UNKNOWN)


# ---- words


def _step(number: int, reserved: int) -> Step:
    return Step(
        step=number,
        peak_allocated_bytes=0,
        peak_reserved_bytes=reserved,
        end_allocated_bytes=0,
        oom=False,
        complete=True,
    )


def _cudnn(**changes: Any) -> CudnnUse:
    values: dict[str, Any] = {"version": 91900, "problems": {"cudnn": 68}, "largest_workspace_bytes": 44 * MIB}
    values |= {"below_bytes": 0, "above_bytes": 0, "benchmark_bytes": 0, "reasons": []} | changes
    return CudnnUse(**values)


@pytest.mark.parametrize(
    ("cudnn", "text"),
    [
        (_cudnn(), "up to 44.0 MiB at a time, included above; all 68 operations with cuDNN 9.19's own plans"),
        (_cudnn(largest_workspace_bytes=0), "not included above; all 68 operations with cuDNN 9.19's own plans"),
        (
            _cudnn(problems={"cudnn": 5, "table": 2}, below_bytes=MIB, above_bytes=3 * MIB),
            "up to 44.0 MiB at a time, included above; operations: 5 with cuDNN 9.19's own plans, 2 estimated from "
            "similar operations; a real GPU may use up to 1.0 MiB less or 3.0 MiB more",
        ),
        (_cudnn(problems={"given": 1}), "up to 44.0 MiB at a time, included above; the only operation as given"),
    ],
)
def test_the_row_of_cudnn_says_how_much_and_whose_answer(cudnn: CudnnUse, text: str) -> None:
    """One row: the most at once, who says so, and what a real card may take beside it."""
    assert [row.text for row in rows_of(cudnn, [])] == [text]


def test_rows_of_guesses_name_both_ends() -> None:
    """A guess that takes nothing says so."""
    guesses = [
        Guess(kind="rnn", count=2, guessed_bytes=12 * MIB, low_bytes=0, high_bytes=36 * MIB),
        Guess(kind="batch_norm", count=2, guessed_bytes=0, low_bytes=0, high_bytes=532 * KIB),
    ]
    rows = rows_of(_cudnn(problems={}), guesses)
    assert [(row.label, row.text) for row in rows] == [
        ("RNN workspaces", "estimate: 12.0 MiB included above, 0 B to 36.0 MiB on a real GPU"),
        ("batch norm workspaces", "estimate: none, 0 B to 532.0 KiB on a real GPU"),
    ]
    assert doubt_of(_cudnn(below_bytes=MIB), guesses) == (13 * MIB, 24 * MIB + 532 * KIB)


def test_three_reasons_are_told_and_the_others_counted() -> None:
    """A net of a hundred strange convolutions does not fill the screen."""
    notes = notes_of(_cudnn(reasons=[f"reason {number}" for number in range(5)]), TORCH)
    assert notes == [
        *(f"workspace sizes that cuDNN was not queried for: reason {number}" for number in range(3)),
        "and 2 more reasons of this kind (all with --json)",
    ]


def test_another_cudnn_than_torchs_own_is_told() -> None:
    """Another patch ranks engines alike; another minor version may not."""
    assert notes_of(_cudnn(version=91999), TORCH) == []
    (note,) = notes_of(_cudnn(version=92600), TORCH)
    assert note == "cuDNN 9.26 was queried, but torch 2.11.0 requires 9.19: its plans may differ"


@pytest.mark.parametrize(("later", "above"), [([60], 0), ([60, 80], 10), ([100], 30), ([], 30)])
def test_what_a_benchmark_keeps_adds_to_the_steps_after_its_trials(later: list[int], above: int) -> None:
    """The first step has tried all plans, and has allocated the largest: only from the second on may there be more."""
    figures = library.PlanFigures(
        runs=9,
        problems=3,
        largest_tensor_bytes=50,
        largest_workspace_bytes=5,
        most_below_bytes=5,
        most_above_bytes=30,
    )
    plans = library.CudnnPlans(by_source={"cudnn": figures}, reasons=())
    steps = [_step(number, size) for number, size in enumerate([100, *later], 1)]
    found = cudnn_of(Measured(cudnn_version=91900, cudnn=plans, peak_reserved_bytes=100, steps=steps))
    assert (found.below_bytes, found.above_bytes, found.benchmark_bytes) == (5, above, 30)
    (row,) = rows_of(found, [])
    assert "benchmark=True" in row.text
    assert ("which the trials already used" in row.text) == (above == 0)
