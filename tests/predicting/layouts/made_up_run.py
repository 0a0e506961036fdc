"""Predictions that somebody has made up: what a rank needs follows from its arguments, and nothing is run."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ullage.base.errors import ScriptError
from ullage.predicting.prediction.data.plain_data import to_plain
from ullage.predicting.prediction.data.prediction import CudnnUse, Outside, Prediction, ValuesUse, Verdict
from ullage.predicting.prediction.remote import request_from
from ullage.predicting.prediction.request import Request

GIB = 1 << 30
TOTAL = 80 * GIB


def run(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Answer as `ullage.predicting.prediction.remote.run` does, at once."""
    request = request_from(payload["request"])
    if (marks := os.environ.get("MADE_UP_MARKS")) is not None:
        _mark(Path(marks), request, cancelled)
    sizes = sizes_of(request)
    if sizes.get("tp") == 8 and sizes.get("pp") == 8:
        return {"error": {"type": ScriptError.__name__, "text": "train.py raised ValueError: heads\nTraceback"}}
    return {"prediction": to_plain(prediction_of(request))}


def _mark(folder: Path, request: Request, cancelled: Callable[[], bool]) -> None:
    """Note that a run was done; wait, or be killed, where the folder says so."""
    with (folder / "runs").open("a") as file:
        file.write("x")
    if (folder / f"kill-{len((folder / 'runs').read_text())}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder / "hold").exists() and not cancelled():
        time.sleep(0.02)


def sizes_of(request: Request) -> dict[str, int]:
    """Return the numbers behind the script's options."""
    words = request.arguments
    return {name.lstrip("-"): int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def need_of(request: Request) -> int:
    """Return the bytes that a rank needs: its share of the weights, micro-batches by its stage, and of the sequence."""
    sizes = sizes_of(request)
    stages = sizes.get("pp", 1)
    stage = request.options["rank"] * stages // (request.options["world_size"] or 1)
    weights = 600 * GIB // (request.options["world_size"] or 1) + 13 * GIB // (sizes.get("tp", 1) * stages)
    parts = sizes.get("tp", 1) * sizes.get("cp", 1) * stages
    kept = (stages - stage) * sizes.get("micro-batch", 1) * 6 * GIB // parts
    return weights + kept + (2 * GIB if stage == stages - 1 else 0) + context_rank_of(request) * 3 % 7 * GIB


def context_rank_of(request: Request) -> int:
    """Return which part of the sequence a rank has, where tensor parallelism alone lies within."""
    sizes = sizes_of(request)
    return request.options["rank"] // sizes.get("tp", 1) % sizes.get("cp", 1)


def prediction_of(request: Request) -> Prediction:
    """Return what a prediction of that need says."""
    need = need_of(request)
    return Prediction(
        verdict=Verdict.FITS if need <= TOTAL else Verdict.DOES_NOT_FIT,
        reason=f"{need} of {TOTAL} would be used",
        script=str(request.script),
        arguments=list(request.arguments),
        gpu=request.options["gpu"],
        torch="2.11.0",
        world_size=request.options["world_size"],
        rank=request.options["rank"],
        total_memory_bytes=TOTAL,
        context_bytes=0,
        context_interval_bytes=(0, 0),
        context_source="made up",
        peak_allocated_bytes=need,
        peak_reserved_bytes=need,
        cached_bytes=0,
        headroom_bytes=TOTAL - need,
        cudnn=CudnnUse(
            version=0,
            problems={},
            largest_workspace_bytes=0,
            below_bytes=0,
            above_bytes=0,
            benchmark_bytes=0,
            reasons=[],
        ),
        guesses=[],
        placement=None,
        outside=Outside(uses=[], peak_bytes=0, managed_on_card_bytes=0),
        interval_bytes=(need, need),
        settled=True,
        growth=None,
        peak_step=1,
        steps=[],
        roles={},
        role_peaks={},
        lines=[],
        timeline={},
        reads=[],
        values=ValuesUse(mode="auto", seed=0, routing="drawn", host_bytes=0, failures={}),
        oom=None,
        oom_count=0,
        notes=[],
        unwritten={},
        compiled_graphs=0,
        changes_made={},
        changes_refused={},
        picture=None,
        snapshot_error=None,
        ended="steps",
        seconds={"total": 1.0},
        sent_bytes_per_step=sizes_of(request).get("tp", 1) * GIB,
        recomputed_share=0.0,
    )
