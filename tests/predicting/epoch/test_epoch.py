"""An epoch that is foreseen from few steps is the epoch that is really run, to the byte."""

from pathlib import Path
from typing import Any

import pytest

from tests.shared.commands import SCRIPTS as EMULATED
from tests.shared.commands import slow
from ullage.predicting.epoch.use import CURVE_POINTS

from .conftest import Predict

HEAVIEST = ("--batches", "heaviest", "--minutes", "2")


def answer(
    predict: Predict, options: tuple[object, ...], script: str | Path, *arguments: object, **changes: str
) -> dict[str, Any]:
    ended = predict((*options, "--json"), script, *arguments, **changes)
    assert ended.code == 0, ended.error
    return ended.json


def both(predict: Predict, script: str, *arguments: object, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The prediction of an epoch, and that of the same script with every step really run."""
    return answer(predict, HEAVIEST, script, *arguments), answer(predict, ("--steps", steps), script, *arguments)


def check_equal(foreseen: dict[str, Any], run: dict[str, Any], *, batches_a_step: int = 1) -> None:
    epoch = foreseen["epoch"]
    assert epoch["is_exact"], epoch["notes"]
    assert epoch["is_foreseen"]
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert epoch[figure] == run[figure]
    assert foreseen["peak_reserved_bytes"] == run["peak_reserved_bytes"]
    peaks = [step["peak_allocated_bytes"] for step in run["steps"]]
    assert epoch["worst"]["index"] // batches_a_step == peaks.index(max(peaks))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), id="to the longest"),
        pytest.param(("--kind", "grouped"), marks=slow, id="grouped by length"),
        pytest.param(("--collate", "multiple", "--drop-last"), marks=slow, id="to a multiple of 8"),
        pytest.param(("--collate", "packed"), marks=slow, id="packed"),
        pytest.param(("--workers", "2"), marks=slow, id="workers"),
        pytest.param(("--new-loader", "--epochs", "2"), marks=slow, id="a loader for each epoch"),
        pytest.param(("--empty-cache", "--longest", "200"), marks=slow, id="an emptied cache"),
    ],
)
def test_an_epoch_is_as_if_every_step_were_run(predict: Predict, how: tuple[str, ...]) -> None:
    foreseen, run = both(predict, "padded.py", *how, steps=30)
    check_equal(foreseen, run)
    epoch = foreseen["epoch"]
    assert epoch["batches"] == len(epoch["reserved_bytes"]) == 30
    assert epoch["batches_stood_in"] == 0


@slow
def test_some_hundred_batches(predict: Predict) -> None:
    foreseen, run = both(predict, "padded.py", "--items", 1600, "--width", 256, "--longest", 100, steps=200)
    check_equal(foreseen, run)
    assert foreseen["epoch"]["steps_run"] < 150


@slow
@pytest.mark.parametrize(
    "conf",
    ["expandable_segments:True", "garbage_collection_threshold:0.6,max_split_size_mb:21,roundup_power2_divisions:4"],
)
def test_under_other_settings(predict: Predict, conf: str) -> None:
    arguments = ("padded.py", "--width", 256, "--longest", 300)
    foreseen = answer(predict, (*HEAVIEST, "--alloc-conf", conf), *arguments)
    check_equal(foreseen, answer(predict, ("--steps", 30, "--alloc-conf", conf), *arguments))


@slow
def test_what_is_kept_grows_over_the_epoch(predict: Predict) -> None:
    foreseen, run = both(predict, "padded.py", "--keep", "--items", 800, steps=100)
    check_equal(foreseen, run)
    assert foreseen["epoch"]["growth_bytes_per_batch"] > 0
    assert foreseen["growth"] is not None


@slow
def test_gradient_accumulation(predict: Predict) -> None:
    foreseen, run = both(predict, "padded.py", "--accumulate", 4, "--items", 256, steps=8)
    check_equal(foreseen, run, batches_a_step=4)


@pytest.mark.parametrize(
    "library", ["accelerate", pytest.param("lightning", marks=slow), pytest.param("trainer", marks=slow)]
)
def test_libraries_that_go_round_the_loader(predict: Predict, library: str) -> None:
    foreseen, run = both(predict, "frameworks.py", library, steps=30)
    check_equal(foreseen, run)


def test_cuda_graphs_are_no_epoch_that_is_known(predict: Predict) -> None:
    """Their pools are kept, one for each length: what the order of an epoch makes of them is not foreseen."""
    found = answer(predict, HEAVIEST, "padded.py", "--graphs", "--collate", "multiple")
    assert not found["epoch"]["is_exact"]
    assert any("CUDA graphs, which use private memory pools" in note for note in found["notes"]), found["notes"]


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        pytest.param(("--items", 412, "--longest", 9), 52, id="a last batch of four, which has a graph made"),
        pytest.param((), 30, marks=slow, id="to the longest"),
        pytest.param(("--kind", "grouped"), 30, marks=slow, id="grouped by length"),
        pytest.param(("--collate", "packed"), 30, marks=slow, id="packed"),
        pytest.param(("--workers", 2, "--items", 412, "--longest", 9), 52, marks=slow, id="workers"),
        pytest.param(("--accumulate", 4, "--items", 512, "--longest", 9), 16, marks=slow, id="accumulation"),
    ],
)
def test_an_epoch_of_a_compiled_model(predict: Predict, workplace: Path, how: tuple[object, ...], steps: int) -> None:
    """Which graphs torch.compile has at a batch follows from the batches before it: also which it makes, and when.

    Kernels that were never tuned need memory when they are, so that each run begins with a cache of its own.
    """
    foreseen, run = (
        answer(predict, options, "padded.py", "--compile", *how, TORCHINDUCTOR_CACHE_DIR=str(workplace / cache))
        for cache, options in (("first", HEAVIEST), ("second", ("--steps", steps)))
    )
    check_equal(foreseen, run, batches_a_step=4 if "--accumulate" in how else 1)
    if "--accumulate" not in how and steps <= CURVE_POINTS:
        assert foreseen["epoch"]["allocated_bytes"] == [step["peak_allocated_bytes"] for step in run["steps"]]


def test_an_epoch_of_one_rank_of_several_is_not_called_exact(predict: Predict) -> None:
    """It was seen to differ from an epoch that was really run, by some hundred KiB."""
    options = (*HEAVIEST, "--world-size", 4, "--rank", 1)
    found = answer(predict, options, "padded.py", "--ddp", "--items", 960)
    assert not found["epoch"]["is_exact"]
    assert any("the memory of collectives" in note for note in found["notes"]), found["notes"]


def test_a_stream_is_run_as_it_comes(predict: Predict) -> None:
    found = answer(predict, HEAVIEST, "padded.py", "--kind", "stream")
    epoch = found["epoch"]
    assert not epoch["is_foreseen"]
    assert epoch["batches"] == epoch["steps_run"] == 30
    assert any("IterableDataset cannot be inspected" in note for note in found["notes"])


def test_memory_runs_out_at_the_batch_at_which_it_really_does(predict: Predict) -> None:
    """Steps are run in another order, on a card with more memory: when the epoch's own order fails is a replay."""
    card = ("--total-memory", "232MiB", "--context", "109MiB")
    ended = predict((*HEAVIEST, *card, "--json"), "padded.py", "--longest", 400)
    run = predict((*card, "--steps", 30, "--json"), "padded.py", "--longest", 400)
    assert (ended.code, run.code) == (1, 1), (ended.error, run.error)
    failed = next(step for step in run.json["steps"] if step["oom"])
    epoch = ended.json["epoch"]
    assert epoch["runs_out_at"] == failed["step"] - 1
    assert epoch["worst"]["items_that_fit"] < epoch["worst"]["items"] == 8
    assert f"memory runs out at batch {epoch['runs_out_at']} of the epoch" in ended.json["reason"]


@slow
def test_a_card_on_which_only_another_order_would_fail(predict: Predict) -> None:
    """The heaviest first leaves other pieces than the epoch does: that has to decide nothing."""
    card = ("--total-memory", "240MiB", "--context", "109MiB")
    foreseen = predict((*HEAVIEST, *card, "--json"), "padded.py", "--longest", 400).json
    run = predict((*card, "--steps", 30, "--json"), "padded.py", "--longest", 400).json
    assert foreseen["verdict"] == run["verdict"]
    assert foreseen["epoch"]["peak_reserved_bytes"] == run["peak_reserved_bytes"]


def test_a_script_without_a_loader(predict: Predict) -> None:
    found = answer(predict, HEAVIEST, EMULATED / "train.py")
    assert "epoch" not in found
    assert any("the training did not use a DataLoader" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batches", "lightest"), "--batches 'lightest' is not known; expected heaviest"),
        (("--batches", "heaviest", "--minutes", "0"), "--minutes 0 is out of range for the time limit of an epoch"),
        (("--batches", "heaviest", "--snapshot", "x.pickle"), "--snapshot cannot be combined with --batches"),
    ],
)
def test_options_that_make_no_sense(predict: Predict, options: tuple[str, ...], said: str) -> None:
    ended = predict(options, "padded.py")
    assert ended.code == 2
    assert said in " ".join(ended.error.split())


def test_the_table_names_the_worst_batch(predict: Predict) -> None:
    ended = predict(HEAVIEST, "padded.py")
    assert ended.code == 0, ended.error
    assert "The whole epoch" in ended.text
    assert "number 19 (one of 3 with its shapes): 8 items, the longest is 40" in ended.text
    assert "Reserved memory over the epoch's batches" in ended.text
