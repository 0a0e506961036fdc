"""Settings that are found by replaying a recorded run: each claim is replayed here once more."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forked import client
from ullage.base.errors import UsageError
from ullage.base.units import GIB
from ullage.cli.app import main
from ullage.explaining.tuning.candidate import Candidate, Space, candidate_of
from ullage.explaining.tuning.search import SettingsSearch
from ullage.explaining.tuning.trial import ROOM_STEP_BYTES, RecordedRun, Trial
from ullage.explaining.tuning.tune import Tuning, tune
from ullage.recorded.allocator.replay import ReplayDevice, replay
from ullage.recorded.history import Action, History, Labels
from ullage.recorded.program import Op
from ullage.recorded.rebuild import program_of
from ullage.recorded.settings import parse_settings, split_options
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20


def recorded(name: str) -> History:
    return load_snapshot(DATA / f"{name}.pickle.gz").devices[0]


@pytest.fixture(scope="module")
def fragmented() -> Tuning:
    return tune(recorded("variable_length_oom"))


def test_what_is_said_of_the_best_is_what_a_replay_of_the_pasted_line_does(fragmented: Tuning) -> None:
    assert fragmented.line == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    made = program_of(recorded("variable_length_oom"))
    done = replay(
        made.program, parse_settings(fragmented.line.partition("=")[2]), ReplayDevice(total_bytes=made.room_bytes)
    )
    best = fragmented.best
    assert best is not None
    assert not done.ran_out
    assert (best.peak_reserved_bytes, best.driver_calls) == (done.peak.reserved_bytes, done.driver_calls)
    assert best.fits
    assert (fragmented.present.fits, fragmented.present.ooms, fragmented.present.retries) == (False, 1, 13)
    assert fragmented.is_cut_short
    assert any("up to and including" in note for note in fragmented.notes)


def test_the_least_room_is_exact_to_a_step(fragmented: Tuning) -> None:
    """With it the run goes through; with one step less a request fails."""
    history = recorded("variable_length_oom")
    run = RecordedRun.of(program_of(history))
    assert [need.text for need in fragmented.needs] == ["", "expandable_segments:True"]
    assert fragmented.needs[0].room_bytes > (fragmented.room_bytes or 0), "it ran out there"
    for need in fragmented.needs:
        assert need.is_exact
        settings = parse_settings(need.text)
        assert run.attempt(need.text, settings, need.room_bytes).fits
        assert not run.attempt(need.text, settings, need.room_bytes - ROOM_STEP_BYTES).fits


def test_the_frontier_is_what_no_other_beats(fragmented: Tuning) -> None:
    frontier = fragmented.frontier
    assert len(frontier) > 1
    for trial in frontier:
        assert not any(
            other.fits
            and other.peak_reserved_bytes <= trial.peak_reserved_bytes
            and other.driver_calls <= trial.driver_calls
            and (other.peak_reserved_bytes, other.driver_calls) != (trial.peak_reserved_bytes, trial.driver_calls)
            for other in fragmented.trials
        )


def test_every_option_earns_its_place() -> None:
    """What reserves a little less with more options set is shown, and not recommended."""
    found = tune(recorded("variable_length_oom"), torch_version="2.11")
    least = min((trial for trial in found.trials if trial.fits), key=lambda trial: trial.peak_reserved_bytes)
    assert found.best is not None
    assert least.peak_reserved_bytes < found.best.peak_reserved_bytes
    assert least.options > found.best.options == 1


def test_where_no_version_is_known_no_option_ends_an_older_process() -> None:
    """torch before 2.11 would abort at large_segment_size_mb; it is tried where the version is given."""
    unknown, given = tune(recorded("normal")), tune(recorded("normal"), torch_version="2.11")
    assert not any("large_segment_size_mb" in trial.text for trial in unknown.trials)
    assert any("large_segment_size_mb" in trial.text for trial in given.trials)


def test_the_same_file_is_answered_alike() -> None:
    assert tune(recorded("two_streams")) == tune(recorded("two_streams"))


@pytest.mark.parametrize(("calls", "is_better"), [(900, True), (901, False)])
def test_settings_that_save_no_bytes_save_many_calls(calls: int, is_better: bool) -> None:
    """A tenth of the calls to the driver, and one for each thousand requests: else nothing is recommended."""
    rebuilt = program_of(recorded("normal"))
    search = SettingsSearch(
        run=replace(RecordedRun.of(rebuilt), allocations=100_000),
        space=Space(version=(2, 11), kept=(), has_limit=True),
        room_bytes=GIB,
        semantics="2.11",
        progress=lambda text: None,
    )
    search.present = _trial("max_split_size_mb:64", calls=1000, retries=5)
    other = _trial("expandable_segments:True", calls=calls, retries=0)
    search.trials = {parse_settings(one.text): one for one in (search.present, other)}
    assert search.better() == (other if is_better else None)


def _trial(text: str, *, calls: int, retries: int) -> Trial:
    """Settings with which a run fits and reserves as much as with the others."""
    return Trial(
        text=text, fits=True, ooms=0, retries=retries, peak_reserved_bytes=GIB, driver_calls=calls, reached=1.0
    )


def test_nothing_better_is_said_plainly() -> None:
    """Where the run cannot reserve much less than it does, no line is recommended."""
    found = tune(recorded("eval_with_grad"))
    assert (found.best, found.line, found.exit_code) == (None, None, 1)
    least = min(trial.peak_reserved_bytes for trial in found.trials if trial.fits)
    assert least > 0.99 * found.present.peak_reserved_bytes
    assert len(found.needs) == 1


@pytest.mark.parametrize(
    ("now", "other", "is_better"),
    [
        # (MiB reserved, driver calls), and the number of options that are set
        ((59_920, 31, 0), (58_192, 31, 1), True),  # 1.69 GiB, 2.9 %: one option is worth more than its price of 1 GiB
        ((59_920, 31, 0), (58_192, 31, 2), False),  # two options cost 2 GiB
        ((100_000, 31, 0), (98_900, 31, 1), True),  # 1.07 GiB are less than 2 % of it, and enough
        ((10_000, 31, 0), (9_790, 31, 1), True),  # 2.1 %
        ((10_000, 31, 0), (9_810, 31, 1), False),  # 1.9 %
        ((21_476, 1_163, 0), (21_118, 834, 1), True),  # 0.35 GiB are 1.7 %, but the driver is called less often, too
        ((21_476, 1_163, 0), (21_476, 834, 1), True),
        ((21_476, 1_163, 0), (21_478, 834, 1), False),  # fewer calls, and more reserved
        ((21_476, 1_163, 0), (21_476, 1_060, 1), False),  # 9 % of the calls
        ((21_476, 1_163, 0), (21_476, 1_000, 2), False),  # 14 % for two options
        ((21_476, 1_163, 1), (21_476, 1_163, 0), False),
    ],
)
def test_what_is_worth_a_change(now: tuple[int, int, int], other: tuple[int, int, int], *, is_better: bool) -> None:
    names = (("expandable_segments:True",), ("max_split_size_mb:64", "roundup_power2_divisions:4"))
    made = [
        Trial(
            text=",".join(known[:options]),
            fits=True,
            ooms=0,
            retries=0,
            peak_reserved_bytes=reserved_mib * MIB,
            driver_calls=calls,
            reached=1.0,
        )
        for known, (reserved_mib, calls, options) in zip(names, (now, other), strict=True)
    ]
    run = RecordedRun.of(program_of(recorded("two_streams")))
    search = SettingsSearch(
        run=run,
        space=Space(version=(2, 11), kept=(), has_limit=False),
        room_bytes=1 << 40,
        semantics="2.11",
        progress=lambda text: None,
        trials={parse_settings(trial.text): trial for trial in made},
        present=made[0],
    )
    assert search.better() == (made[1] if is_better else None)


def test_where_nothing_fits_it_says_what_is_needed() -> None:
    found = tune(recorded("normal"), capacity_bytes=700 * MIB)
    assert found.best is None
    assert found.room_bytes == 700 * MIB
    assert not any(trial.fits for trial in found.trials)
    assert all(trial.fits for trial in found.in_any_room)
    present, best = found.needs
    assert 700 * MIB < best.room_bytes < present.room_bytes
    roomy = tune(recorded("normal"), capacity_bytes=best.room_bytes)
    assert roomy.best is not None, "with as much as that it fits"


def test_what_ran_out_and_went_on_is_not_kept_alive() -> None:
    """A request that failed is freed at once where it succeeds: else the run would hold what it never had."""
    history = recorded("oom_recover")
    made = program_of(history)
    run = RecordedRun.of(made)
    roomy = ReplayDevice(total_bytes=1 << 40)
    ours = replay(run.program, made.settings, roomy)
    blocks = [block for segment in history.segments for block in segment.blocks if block.state != "inactive"]
    assert ours.now.requested_bytes == sum(block.requested for block in blocks)
    assert any("the program continued" in note for note in tune(history).notes)


def test_recording_that_began_in_the_middle_is_named() -> None:
    """What was reserved before stays under all settings; where that is all there is, nothing can be told."""
    history = recorded("normal")
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    late = replace(history, **{name: getattr(history, name)[-2000:] for name in columns}, labels=Labels())
    found = tune(late)
    assert found.start_bytes == found.present.peak_reserved_bytes
    assert found.best is None
    assert all(trial.peak_reserved_bytes >= found.start_bytes for trial in found.trials)
    assert any("recording began after the start of the process" in note for note in found.notes)


def test_a_file_without_a_trace_is_refused() -> None:
    """Nothing can be replayed of what was only there when the file was written."""
    history = recorded("normal")
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    with pytest.raises(UsageError, match="this file has no trace"):
        tune(replace(history, **{name: getattr(history, name)[:0] for name in columns}, labels=Labels()))


def test_present_settings_that_are_not_searched_stay() -> None:
    """The line replaces the whole variable, so what else stands in it is written again."""
    found = tune(recorded("two_streams"), alloc_conf="pinned_use_background_threads:True,max_split_size_mb:100")
    assert found.present.text == "pinned_use_background_threads:True,max_split_size_mb:100"
    assert found.best is not None
    assert "pinned_use_background_threads:True" in found.best.text
    assert "max_split_size_mb:100" not in found.best.text


def test_a_budget_ends_the_search_and_is_named() -> None:
    found = tune(recorded("normal"), budget_seconds=1e-9)
    assert not found.is_complete
    assert len(found.trials) == 1
    assert [need.is_exact for need in found.needs] == [False]
    assert found.needs[0].room_bytes == found.present.peak_reserved_bytes, "in as much it certainly fits"


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("2.8.0", ("large_segment_size_mb", "per_process_memory_fraction")),
        ("2.10", ("large_segment_size_mb",)),
        ("2.15", ()),
    ],
)
def test_an_older_torch_gets_what_it_knows(version: str, unknown: tuple[str, ...]) -> None:
    """The variable that every version reads, and no option at which it would abort."""
    found = tune(recorded("oom"), torch_version=version)
    assert found.line is not None
    assert found.line.startswith("export PYTORCH_CUDA_ALLOC_CONF=")
    tried = {name for trial in found.trials for name, _ in split_options(trial.text)}
    assert not tried & set(unknown)
    if not unknown:
        assert {"large_segment_size_mb", "per_process_memory_fraction"} <= tried


def test_segments_given_back_for_want_of_room_are_not_repeated_elsewhere() -> None:
    """Given how much there was, what the allocator gave back itself is no empty_cache of the program."""
    history = recorded("variable_length_oom")
    until = int((history.action == Action.OOM).nonzero()[0][0])
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    early = replace(
        history,
        **{name: getattr(history, name)[:until] for name in columns},
        labels=Labels(),
        segments=(),
    )
    assert (program_of(early).program.op == Op.EMPTY_CACHE).any()
    found = tune(early, capacity_bytes=2850 * MIB)
    assert (found.present.fits, found.present.retries) == (True, 12), "the 13th was at the request that failed"


def test_texts_of_settings_come_back_whole() -> None:
    """Options are cut apart outside of brackets only, and what is put together can be read."""
    text = "roundup_power2_divisions:[64:1,>:8],expandable_segments:True, pinned_num_register_threads:2"
    found = candidate_of(text)
    assert found.text == "expandable_segments:True,roundup_power2_divisions:[64:1,>:8],pinned_num_register_threads:2"
    assert found.settings("2.11") == parse_settings(text)
    space = Space(version=(2, 15), kept=(), has_limit=True)
    alone = list(space.alone())
    assert all(candidate.settings("2.15") is not None for candidate in alone)
    assert len({candidate.text for candidate in alone}) == len(alone)
    assert alone[0] == Candidate()
    assert alone[1].text == "expandable_segments:True"


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ullage", "tune", *map(str, arguments)]
    return client.run(line, timeout=900)


def test_the_command_line(tmp_path: Path) -> None:
    """The line to paste stands alone and whole on a line of its own."""
    page = tmp_path / "page.html"
    ended = command(DATA / "oom.pickle.gz", "--html", page)
    assert ended.returncode == 0, ended.stderr
    assert "  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in ended.stdout.splitlines()
    assert "PASSES THE FAILED REQUEST" in page.read_text()
    ended = command(DATA / "eval_with_grad.pickle.gz", "--json")
    assert ended.returncode == 1, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["schema"], answer["best"], answer["line"]) == (1, None, None)
    assert answer["candidates"][0].keys() == answer["present"].keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.pickle",), "none.pickle cannot be read: No such file or directory"),
        ((DATA / "oom.pickle.gz", "--budget", "0"), "--budget 0 is not a time limit"),
        ((DATA / "oom.pickle.gz", "--capacity", "0B"), "--capacity 0B is not the memory of a GPU"),
        ((DATA / "oom.pickle.gz", "--alloc-conf", "backend:cudaMallocAsync"), "passes every request to the driver"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
