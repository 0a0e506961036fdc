"""The whole search over runs that somebody has made up: every engine has one answer, and what fails costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.predicting.layouts.made_up_run import TOTAL, context_rank_of, need_of, prediction_of
from ullage.base.engines.chosen import open_engine
from ullage.base.errors import ScriptError
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.layouts import rank_runs
from ullage.predicting.layouts.describe import describe
from ullage.predicting.layouts.fit_layouts import LayoutQuestion, LayoutsSearch, fit_layouts
from ullage.predicting.layouts.layout import LayoutSpace
from ullage.predicting.layouts.layout_fit import LayoutFit, LayoutRow
from ullage.predicting.layouts.option_map import map_of
from ullage.predicting.layouts.result_store import ResultStore
from ullage.predicting.prediction.data.prediction import Verdict
from ullage.predicting.prediction.request import Request

ROOT = Path(__file__).parents[3]
OPTIONS = ["dp=--dp", "tp=--tp", "pp=--pp", "cp=--cp"]


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rank_runs, "RUN", "tests.predicting.layouts.made_up_run:run")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("")


def question_of(folder: Path, *, cards: int = 64, most: tuple[str, ...] = (), every: bool = False) -> LayoutQuestion:
    space = LayoutSpace.parse("dp*tp*pp*cp", cards, most=most)
    return LayoutQuestion(
        request=Request.of(folder / "train.py", gpu="H100", total_memory=TOTAL, world_size=cards),
        space=space,
        option_map=map_of(None, OPTIONS, space),
        axis=Axis.parse("--micro-batch=1..64"),
        margin_bytes=0,
        every_stage=every,
        item_tokens=4096,
    )


def answer_of(question: LayoutQuestion, store: Path | None = None, on: str = "local", workers: int = 2) -> LayoutFit:
    with open_engine(on, workers=workers) as engine, ResultStore(store) as kept:
        return fit_layouts(question, engine, kept)


def essence(found: LayoutFit) -> list[dict[str, Any]]:
    """What has to be the same whoever did the runs."""
    return found.to_json()["layouts"]


def test_every_layout_has_the_largest_batch_that_all_its_ranks_fit_with(tmp_path: Path) -> None:
    question = question_of(tmp_path)
    found = answer_of(question)
    assert len(found.rows) == 84
    for row in found.rows:
        if row.verdict == "the script fails":
            assert (row.layout.size("tp"), row.layout.size("pp")) == (8, 8)
            assert row.error.startswith("train.py raised ValueError: heads")
            continue
        layout = row.layout
        requests = [[question.request_of(layout, value, rank) for rank in range(64)] for value in range(1, 65)]
        are_all_run = row.verdict == "fits"
        needs = [max(need_of(each) for each in ranks if are_all_run or not context_rank_of(each)) for ranks in requests]
        largest = sum(need <= TOTAL for need in needs)
        does_fit = row.verdict in ("fits", "fits as far as was run")
        assert (row.value if does_fit else 0) == largest, layout.text
        if does_fit:
            assert row.free_bytes == TOTAL - needs[largest - 1]
            assert row.items == largest * layout.size("dp")
    assert found.exit_code == 0
    assert found.best == max(
        (row for row in found.rows if row.verdict == "fits"), key=lambda row: (row.items, -row.sent_bytes)
    )


def ranks_along(question: LayoutQuestion, row: LayoutRow) -> set[int]:
    """Return which parts of the sequence the ranks have that were run."""
    return {context_rank_of(question.request_of(row.layout, row.value or 1, run.rank)) for run in row.ranks}


def test_a_layout_fits_where_each_rank_along_the_sequence_was_run(tmp_path: Path) -> None:
    """They need more by no rule, so the first does not stand for the others."""
    question = question_of(tmp_path)
    found = answer_of(question)
    cut = [row for row in found.rows if row.layout.size("cp") > 1]
    assert {row.verdict for row in cut} == {"fits", "fits as far as was run"}
    for row in cut:
        assert ranks_along(question, row) == set(range(row.layout.size("cp") if row.verdict == "fits" else 1))
    marks = [(row.items, row.free_bytes, -(row.sent_bytes or 0)) for row in found.rows if row.verdict == "fits"]
    partly = [row for row in cut if row.verdict == "fits as far as was run"]
    for row in partly:  # it would be surpassed even if its other ranks needed no more
        mine = (row.items, row.free_bytes, -(row.sent_bytes or 0))
        assert any(all(a >= b for a, b in zip(mark, mine, strict=True)) for mark in marks), row.layout.text
    report = describe(found)
    fitting = sum(row.verdict == "fits" for row in found.rows)
    assert report.headline == f"{fitting} OF 84 LAYOUTS FIT, {len(partly)} MORE FIT ON THE RANKS THAT WERE RUN"
    assert report.sections[-1].items[1] == (
        "Each rank along cp attends to different parts of a sequence, and its reserved memory follows no simple rule: "
        f"if a layout fits, every such rank was run; of {len(partly)} layouts only the first rank was run, because "
        "another layout is at least as good in every column"
    )
    cut_off = describe(replace(found, is_whole=False))
    assert cut_off.headline == f"{report.headline} SO FAR"
    assert cut_off.sections[-1].items[1].endswith(f"of {len(partly)} layouts only the first rank was run")


def test_every_layout_of_a_search_that_tries_no_batches_is_on_the_frontier_that_all_ranks_would_give(
    tmp_path: Path,
) -> None:
    question = replace(question_of(tmp_path, cards=16), axis=None)
    question = replace(question, request=replace(question.request, arguments=("--micro-batch", "9")))
    found = answer_of(question)
    whole = []
    for row in found.rows:
        every = [prediction_of(question.request_of(row.layout, 0, rank)) for rank in range(16)]
        if all(each.verdict is Verdict.FITS for each in every):
            free = min(each.total_memory_bytes - each.interval_bytes[1] for each in every)
            whole.append((free, -max(each.sent_bytes_per_step or 0 for each in every), row.layout))
    best = {
        layout
        for free, sent, layout in whole
        if not any((a, b) != (free, sent) and a >= free and b >= sent for a, b, _ in whole)
    }
    assert {found.rows[place].layout for place in found.frontier} == best
    assert len(best) > 1
    assert any(row.verdict == "fits as far as was run" for row in found.rows)


def test_a_layout_that_only_its_first_rank_fits_with_does_not_fit(tmp_path: Path) -> None:
    space = LayoutSpace.parse("cp", 16)
    question = replace(question_of(tmp_path), space=space, axis=None, option_map=map_of(None, ["cp=--cp"], space))
    (layout,) = space.layouts()
    question = replace(question, margin_bytes=TOTAL - need_of(question.request_of(layout, 0, 0)))
    found = answer_of(question)
    assert (found.exit_code, found.rows[0].verdict) == (1, "does not fit")
    assert [run.fits for run in found.rows[0].ranks] == [rank * 3 % 7 == 0 for rank in range(16)]
    assert found.rows[0].fullest is not None
    assert found.rows[0].fullest.stands_for == "cp rank 2"
    report = describe(found)
    assert report.headline == "NONE OF 1 LAYOUTS FITS"
    assert not any("only the first was run" in section.title for section in report.sections)


@pytest.mark.parametrize("on", ["submitit-local", "ray"])
def test_every_engine_has_the_same_answer(tmp_path: Path, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = on.partition("-")[0]
    pytest.importorskip(name, reason=f"{name} is not in the test environment: `make clusters` runs this with it")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # Ray would write a token into the user's home
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not a cluster that runs here for something else
    question = question_of(tmp_path, cards=4)
    assert essence(answer_of(question, on=on)) == essence(answer_of(question, workers=3))


def test_rows_stand_in_an_order_that_does_not_tell_whose_runs_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layout with two choices that need the same, the first comes first, even where it was run last."""
    space = LayoutSpace.parse("dp*tp*pp*cp", 8, choose=["--zero=2,3"])
    question = replace(question_of(tmp_path, cards=8), space=space)
    found = answer_of(question, workers=1)
    look = LayoutsSearch._look_at_each
    monkeypatch.setattr(
        LayoutsSearch, "_look_at_each", lambda search, layouts, **how: look(search, layouts[::-1], **how)
    )
    assert essence(answer_of(question, workers=1)) == essence(found)


def test_what_was_run_once_is_known(tmp_path: Path) -> None:
    question, store = question_of(tmp_path, cards=8), tmp_path / "kept.sqlite"
    first, second = answer_of(question, store), answer_of(question, store)
    assert (first.known_count, second.run_count, second.known_count) == (0, 0, first.run_count)
    assert essence(first) == essence(second)
    (tmp_path / "train.py").write_text("# changed\n")
    assert answer_of(question, store).run_count == first.run_count


def test_a_broken_store_is_a_note_and_the_answer_the_same(tmp_path: Path) -> None:
    question, store = question_of(tmp_path, cards=4), tmp_path / "kept.sqlite"
    store.write_bytes(b"no database" * 1000)
    found = answer_of(question, store)
    assert essence(found) == essence(answer_of(question))
    assert [note for note in found.notes if "the search continues without" in note]
    assert "the search continues without" in json.dumps(found.to_json())


def test_a_script_that_fails_with_every_layout_is_an_error(tmp_path: Path) -> None:
    space = LayoutSpace.parse("tp*pp", 64, most=["tp=8", "pp=8"])
    question = question_of(tmp_path)
    with pytest.raises(ScriptError, match=r"with each of 1 layouts; with tp 8 · pp 8: train\.py raised ValueError"):
        answer_of(LayoutQuestion(**{name: getattr(question, name) for name in question.__slots__} | {"space": space}))


def test_the_report_says_the_best_and_what_is_an_estimate(tmp_path: Path) -> None:
    report = describe(answer_of(question_of(tmp_path, cards=64)))
    assert " OF 84 LAYOUTS FIT" in report.headline
    assert "tokens per step" in report.sentence
    titles = [section.title for section in report.sections]
    assert titles[0].startswith("Layouts that fit")
    assert "Layouts with which the script fails, or which could not be run" in titles
    assert sum("estimate" in line for line in report.sections[-1].items) == 1  # nothing is computed again
    assert report.pictures[0].limit == TOTAL


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("train.py raised ValueError: 7 heads\nTraceback ...", "train.py raised ValueError: 7 heads"),
        (
            "train.py exited with code 2; its last output was:\n[titan] starts\n╭─ Value error ─────╮\n"
            "│ Error parsing Config: no graphs with pipelines │\n│ See --help │\n╰────╯",
            "train.py exited with code 2: Error parsing Config: no graphs with pipelines",
        ),
        ("train.py exited with code 7; its last output was:\nno data\n\n", "train.py exited with code 7: no data"),
        ("train.py exited with code 7", "train.py exited with code 7"),
    ],
)
def test_a_layout_that_fails_has_the_line_that_says_why(tmp_path: Path, error: str, shown: str) -> None:
    found = answer_of(question_of(tmp_path, cards=4))
    row = replace(found.rows[0], verdict="the script fails", error=error)
    sections = describe(replace(found, rows=(*found.rows[1:], row))).sections
    (table,) = [each for each in sections if each.title.startswith("Layouts with which the script fails")]
    assert shown in [cells[-1] for cells in (line.cells for line in table.rows)]


# ---- a driver that is ended

_DRIVER = """
import sys, signal
from pathlib import Path
sys.path.insert(0, {root!r})
from ullage.predicting.layouts import rank_runs
rank_runs.RUN = "tests.predicting.layouts.made_up_run:run"
from ullage.cli.app import main
main(["fit", {script!r}, "--gpu", "H100", "--total-memory", "80GiB", "--cards", "8", "--layout", "dp*tp",
      "--layout-option", "dp=--dp", "--layout-option", "tp=--tp", "--vary", "--micro-batch=1..64",
      "--workers", "1", "--store", {store!r}])
"""


def driver(tmp_path: Path) -> subprocess.Popen[str]:
    code = _DRIVER.format(root=str(ROOT), script=str(tmp_path / "train.py"), store=str(tmp_path / "kept.sqlite"))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"MADE_UP_MARKS": str(tmp_path), "COLUMNS": "100"},
    )


def runs_in(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text()) if path.exists() else 0


def until_held(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until some runs are done and one is held."""
    (tmp_path / "hold").touch()
    while not runs_in(tmp_path):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_killed_driver_goes_on_from_what_is_kept(tmp_path: Path) -> None:
    whole = driver(tmp_path)
    text, error = whole.communicate()
    assert whole.returncode == 0, error
    count = runs_in(tmp_path)
    (tmp_path / "runs").unlink()
    (tmp_path / "kept.sqlite").unlink()
    (tmp_path / "kill-3").touch()  # the third run kills its process, which is the driver
    first = driver(tmp_path)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    (tmp_path / "kill-3").unlink()
    again = driver(tmp_path)
    text_again, error = again.communicate()
    assert again.returncode == 0, error
    assert runs_in(tmp_path) == count + 1  # the one that was cut off
    assert text_again.splitlines()[1] == text.splitlines()[1]


def test_an_interrupt_shows_the_best_so_far_and_ends_with_130(tmp_path: Path) -> None:
    process = driver(tmp_path)
    until_held(tmp_path, process)
    process.send_signal(signal.SIGINT)
    text, error = process.communicate()
    assert process.returncode == 130, error
    assert "SO FAR" in text
    assert "run the same command again to continue from the stored results" in " ".join(text.split())
    assert "interrupted; no processes or temporary files were left" in error
