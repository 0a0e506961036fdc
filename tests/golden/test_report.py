"""What a prediction looks like on a terminal of 80 columns, compared with what was looked at and found good.

Make the golden files anew with: ULLAGE_GOLDEN=write pytest tests/golden
"""

import dataclasses
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from ullage.explaining.difference.describe import describe as describe_difference
from ullage.explaining.difference.difference import ChangeKind, Difference, Level, LineChange, Moment
from ullage.explaining.tuning.describe import describe as describe_tune
from ullage.explaining.tuning.trial import Trial
from ullage.explaining.tuning.tune import LeastRoom, Tuning
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.describe import describe as describe_fit
from ullage.predicting.fitting.fit import CHANGES, Fit, FrontierRow, Largest, Probe, TriedChange
from ullage.predicting.prediction.data.prediction import (
    CudnnUse,
    Growth,
    Guess,
    HostRead,
    LineUse,
    Oom,
    Outside,
    Peaks,
    Placement,
    Prediction,
    RankPeaks,
    Step,
    ValuesUse,
    Verdict,
)
from ullage.predicting.prediction.description.describe import describe
from ullage.predicting.prediction.host.memory import HostLine, HostUse
from ullage.predicting.prediction.job_request import JobNeeds, job_request_of
from ullage.report.report import Curve
from ullage.report.terminal import draw

FOLDER = Path(__file__).parent
GIB = 1 << 30
MIB = 1 << 20
ROLES = {
    "parameters": GIB,
    "gradients": 0,
    "optimizer_state": 2 * GIB,
    "buffers": MIB,
    "activations": 3 * GIB,
    "inputs": 512,
    "temporaries": 900 * MIB,
    "workspaces": 8 * MIB,
    "rounding": 3 * MIB,
    "unknown": 0,
}
LINES = [
    LineUse(
        role="activations", file="train.py", line=41, function="forward", phase="forward", bytes=3 * GIB, blocks=96
    ),
    LineUse(
        role="optimizer_state", file="train.py", line=50, function="main", phase="optimizer", bytes=2 * GIB, blocks=1
    ),
    LineUse(role="temporaries", file="train.py", line=49, function="main", phase="backward", bytes=900 * MIB, blocks=2),
    LineUse(role="workspaces", file=None, line=None, function=None, phase="forward", bytes=8 * MIB, blocks=1),
]
ALLOCATED = sum(ROLES.values())
FITS = Prediction(
    verdict=Verdict.FITS,
    reason="at most 8.31 GiB of 11.62 GiB would be used",
    script="train.py",
    arguments=["--batch-size", "8"],
    gpu="NVIDIA GeForce RTX 3060",
    torch="2.11.0+cu130",
    world_size=None,
    rank=0,
    ranks=[],
    total_memory_bytes=12478054400,
    context_bytes=512 * MIB,
    context_interval_bytes=(100 * MIB, 600 * MIB),
    context_source="assumed: no profile of this card was measured",
    peak_allocated_bytes=ALLOCATED,
    peak_reserved_bytes=ALLOCATED + 700 * MIB,
    cached_bytes=650 * MIB,
    headroom_bytes=12478054400 - ALLOCATED - 1212 * MIB,
    cudnn=CudnnUse(
        version=91900,
        problems={"cudnn": 56, "unknown": 4},
        largest_workspace_bytes=40 * MIB,
        below_bytes=0,
        above_bytes=100 * MIB,
        benchmark_bytes=0,
        reasons=["cuDNN has no engine for it; convolution fp64 8x3x32x32 with 8x3x3x3, stride 1"],
    ),
    guesses=[Guess(kind="rnn", count=3, guessed_bytes=12 * MIB, low_bytes=0, high_bytes=36 * MIB)],
    outside=Outside(uses=[], peak_bytes=0, managed_on_card_bytes=0),
    placement=Placement(
        driver="linux", ties=3, below_bytes=0, above_bytes=20 * MIB, fits_somewhere=True, is_certain=True
    ),
    interval_bytes=(ALLOCATED + 788 * MIB, ALLOCATED + 1444 * MIB),
    settled=True,
    growth=None,
    peak_step=2,
    steps=[
        Step(
            step=number,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=ALLOCATED + 700 * MIB,
            end_allocated_bytes=4 * GIB,
            oom=False,
            complete=True,
        )
        for number, peak in ((1, 5 * GIB), (2, ALLOCATED), (3, ALLOCATED))
    ],
    roles=ROLES,
    role_peaks=ROLES | {"gradients": GIB},
    lines=LINES,
    timeline={"allocated_bytes": [number % 40 * GIB // 8 for number in range(120)], "step_ends": [39, 79, 119]},
    reads=[
        HostRead(file="train.py", line=52, op="item", count=3, bytes=12, kind="float", certainty="drawn"),
        HostRead(file="train.py", line=40, op="nonzero", count=3, bytes=24, kind="shape", certainty="known"),
    ],
    values=ValuesUse(mode="on", seed=0, routing="drawn", host_bytes=3 * MIB, failures={}),
    draws=[],
    oom=None,
    oom_count=0,
    notes=[
        "workspace sizes that cuDNN was not queried for: cuDNN has no engine for it; "
        "convolution fp64 8x3x32x32 with 8x3x3x3, stride 1"
    ],
    unwritten={},
    compiled_graphs=0,
    eager=None,
    changes_made={},
    changes_refused={},
    picture=None,
    snapshot_error=None,
    ended="steps",
    seconds={"total": 4.0, "import": 1.5},
)
OOM = dataclasses.replace(
    FITS,
    verdict=Verdict.DOES_NOT_FIT,
    reason="the script ran out of memory: it requested 2.25 GiB more",
    settled=False,
    oom=Oom(
        text="CUDA out of memory. Tried to allocate 2.30 GiB.",
        file="train.py",
        line=49,
        requested_bytes=2300 * MIB,
        allocated_bytes=ALLOCATED,
        reserved_bytes=ALLOCATED + 50 * MIB,
        roles=ROLES,
        lines=LINES,
    ),
    oom_count=1,
    ended="oom",
    notes=[],
    reads=[],
)
UNUSED = dataclasses.replace(
    FITS,
    verdict=Verdict.UNKNOWN,
    reason="the script allocated nothing on the GPU",
    peak_allocated_bytes=0,
    peak_reserved_bytes=0,
    steps=[],
    roles={},
    lines=[],
    timeline={},
    reads=[],
    notes=[],
)


RANKS = dataclasses.replace(
    FITS,
    world_size=2,
    rank=1,
    ranks=[
        RankPeaks(rank=rank, verdict=Verdict.FITS, peak_allocated_bytes=GIB, peak_reserved_bytes=(rank + 3) * GIB)
        for rank in range(2)
    ],
    compiled_graphs=1,
    eager=Peaks(verdict=Verdict.UNKNOWN, peak_allocated_bytes=9 * GIB, peak_reserved_bytes=11 * GIB),
    settled=False,
    growth=Growth(bytes_per_step=12 * MIB, file="train.py", line=41),
)

HOST = dataclasses.replace(
    FITS,
    verdict=Verdict.DOES_NOT_FIT,
    reason="host memory is too small: at least 19.50 GiB for 8 ranks is needed, and 16.00 GiB is available",
    reads=[],
    host=HostUse(
        pinned_peak_bytes=2 * GIB,
        pinned_lines=[
            HostLine(file="train.py", line=12, function="main", is_users=True, bytes=GIB, blocks=1),
            HostLine(
                file="torch/utils/data/_utils/pin_memory.py",
                line=57,
                function="pin_memory",
                is_users=False,
                bytes=GIB,
                blocks=4,
            ),
        ],
        pinned_untouched_bytes=512 * MIB,
        tensors_peak_bytes=GIB,
        tensor_lines=[HostLine(file=None, line=None, function=None, is_users=False, bytes=GIB, blocks=30)],
        arrays_peak_bytes=0,
        array_lines=[],
        resident_peak_bytes=2 * GIB,
        own_bytes=48 * MIB,
        file_bytes=512 * MIB,
        workers=4,
        workers_bytes=384 * MIB,
        shared_memory_bytes=128 * MIB,
        ranks_of_a_node=8,
        total_bytes=39 * GIB // 2,
        limit_bytes=16 * GIB,
        limit_source="given",
        fits=False,
    ),
    job_request=job_request_of(
        "k8s",
        JobNeeds(
            script="train.py",
            gpu="NVIDIA H100 80GB HBM3",
            card_bytes=80 * GIB,
            used_bytes=31 * GIB,
            fits=False,
            nodes=1,
            gpus=8,
            ranks=8,
            workers=4,
            host_bytes=39 * GIB // 2,
            shared_memory_bytes=GIB,
        ),
    ),
)


def probe(value: int, *, fits: bool) -> Probe:
    """A value's prediction, which fits or runs out."""
    return Probe(value=value, fits=fits, prediction=FITS if fits else OOM)


FIT = Fit(
    script="train.py",
    arguments=[],
    gpu=FITS.gpu,
    total_memory_bytes=FITS.total_memory_bytes,
    margin_bytes=256 * MIB,
    axis=Axis(option="--batch-size", multiple=8, low=8),
    largest=Largest(
        probes=(probe(8, fits=True), probe(16, fits=False)), best=probe(8, fits=True), next=probe(16, fits=False)
    ),
    tried=(
        TriedChange(
            change=CHANGES[0][0],
            setting=CHANGES[0][1],
            how="expandable_segments:True",
            applies=True,
            probe=None,
            largest=Largest(probes=(), best=probe(16, fits=True), next=None),
        ),
        TriedChange(
            change=CHANGES[1][0],
            setting=CHANGES[1][1],
            how="max_split_size_mb:128",
            applies=True,
            probe=probe(16, fits=False),
            largest=None,
        ),
        TriedChange(
            change=CHANGES[2][0],
            setting=CHANGES[2][1],
            how="AdamW(..., fused=True)",
            applies=False,
            probe=None,
            largest=None,
        ),
    ),
    second=None,
    frontier=(),
    seconds=30.0,
)
FRONTIER = dataclasses.replace(
    FIT,
    tried=(),
    second=Axis(option="--length", low=512, high=1024),
    frontier=(
        FrontierRow(value=512, largest=FIT.largest),
        FrontierRow(value=1024, largest=Largest(probes=(probe(8, fits=False),), best=None, next=probe(8, fits=False))),
    ),
)


def trial(text: str, reserved_mib: int, calls: int, *, reached: float = 1.0, retries: int = 0) -> Trial:
    """What a run does under some settings."""
    return Trial(
        text=text,
        fits=reached == 1,
        ooms=int(reached < 1),
        retries=retries,
        peak_reserved_bytes=reserved_mib * MIB,
        driver_calls=calls,
        reached=reached,
    )


EXPANDABLE, PLAIN = "expandable_segments:True", trial("", 2844, 1234, reached=0.4, retries=13)
TUNED = trial(EXPANDABLE, 2558, 74)
LARGER = trial(f"{EXPANDABLE},large_segment_size_mb:128", 2598, 36)
TUNE = Tuning(
    source="oom.pickle",
    device=0,
    torch_version="2.11",
    room_bytes=2850 * MIB,
    start_bytes=0,
    is_cut_short=True,
    present=PLAIN,
    best=TUNED,
    line=f"export PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}",
    trials=(TUNED, LARGER, trial("roundup_power2_divisions:8", 2846, 154, retries=6), PLAIN),
    in_any_room=(),
    frontier=(LARGER, TUNED),
    needs=(
        LeastRoom(text="", room_bytes=2898 * MIB, is_exact=True),
        LeastRoom(text=EXPANDABLE, room_bytes=2408 * MIB, is_exact=True),
    ),
    is_complete=False,
    notes=("what is said holds up to and including the request that failed",),
)
TUNE_NOTHING = dataclasses.replace(
    TUNE,
    room_bytes=2300 * MIB,
    best=None,
    line=None,
    trials=(PLAIN,),
    in_any_room=(TUNED, dataclasses.replace(PLAIN, fits=True, reached=1.0, retries=0)),
    frontier=(TUNED,),
    is_complete=True,
)


def change(
    name: str, before_mib: int, after_mib: int, kind: ChangeKind = ChangeKind.SAME, moved_from: str | None = None
) -> LineChange:
    """A line, with a block a MiB."""
    return LineChange(
        name=name,
        function="" if name.startswith("(") else "forward",
        kind=kind,
        moved_from=moved_from,
        before_bytes=before_mib * MIB,
        after_bytes=after_mib * MIB,
        before_blocks=before_mib,
        after_blocks=after_mib,
    )


DIFF = Difference(
    before="monday.pickle",
    after="tuesday.pickle",
    moment=Moment.END,
    lines=(
        change("project/model.py:41", 0, 1500, ChangeKind.NEW),
        change("project/model.py:52", 100, 140, ChangeKind.MOVED, "project/model.py:49"),
        change("project/train.py:10", 700, 700),
        change("(no line of yours)", 20, 12),
        change("project/data.py:7", 90, 0, ChangeKind.VANISHED),
    ),
    annotations=(change("(no annotation)", 210, 1652), change("Optimizer.step#AdamW.step", 700, 700)),
    levels=(
        Level(name="allocated", before=910 * MIB, after=2352 * MIB, is_bytes=True),
        Level(name="freed, pending", before=0, after=0, is_bytes=True),
        Level(name="cached", before=90 * MIB, after=48 * MIB, is_bytes=True),
        Level(name="reserved", before=1000 * MIB, after=2400 * MIB, is_bytes=True),
        Level(name="segments", before=50, after=112, is_bytes=False),
    ),
    overall=(
        Level(name="allocated at the end", before=910 * MIB, after=2352 * MIB, is_bytes=True),
        Level(name="reserved at the end", before=1000 * MIB, after=2400 * MIB, is_bytes=True),
        Level(name="allocated at the peak", before=990 * MIB, after=970 * MIB, is_bytes=True),
    ),
    notes=("2 GPUs are added up (--device selects one)",),
)
REPORTS = {
    "predict_fits": describe(FITS),
    "predict_oom": describe(OOM),
    "predict_unused": describe(UNUSED),
    "predict_ranks": describe(RANKS),
    "predict_host": describe(HOST),
    "fit": describe_fit(FIT),
    "fit_frontier": describe_fit(FRONTIER),
    "tune": describe_tune(TUNE),
    "tune_nothing": describe_tune(TUNE_NOTHING),
    "diff": describe_difference(DIFF),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_terminal_shows_what_was_found_good(name: str) -> None:
    stream = io.StringIO()
    draw(REPORTS[name], Console(file=stream, width=80, highlight=False, force_terminal=False))
    text = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("ULLAGE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["predict_fits", "predict_oom"])
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    stream = io.StringIO()
    draw(REPORTS[name], Console(file=stream, width=80, highlight=False, force_terminal=False))
    assert max(len(line) for line in stream.getvalue().splitlines()) <= 80


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("steps", "run more steps with --steps"),
        ("time", "the run was stopped too early"),
        ("ended", "the script ended too early"),
    ],
)
def test_why_a_peak_has_not_settled_is_what_ended_the_run(ended: str, why: str) -> None:
    report = describe(dataclasses.replace(FITS, settled=False, ended=ended))
    curve = next(section for section in report.sections if isinstance(section, Curve))
    assert curve.remark.endswith(f"the peak is not stable yet: {why}")


@pytest.mark.parametrize(
    ("reserved_mib", "headline", "sentence"),
    [
        (
            2844,
            "286.0 MiB LESS",
            "With expandable_segments:True this run reserves at most 2.50 GiB of GPU memory instead of 2.78 GiB. The "
            "run makes 74 driver calls instead of 1,234.",
        ),
        (
            2558,
            "1,160 FEWER DRIVER CALLS",
            "With expandable_segments:True this run makes 74 driver calls instead of 1,234, and still reserves at most "
            "2.50 GiB of GPU memory.",
        ),
    ],
)
def test_a_run_that_fits_already_is_told_what_it_would_save(reserved_mib: int, headline: str, sentence: str) -> None:
    report = describe_tune(dataclasses.replace(TUNE, present=trial("", reserved_mib, 1234)))
    assert (report.headline, sentence in report.sentence) == (headline, True), report.sentence
