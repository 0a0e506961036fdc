"""What travels between a prediction's two processes arrives as it was sent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.base.errors import ScriptError, UllageError
from ullage.gpu.emulator.library import CudnnPlans, GuessFigures, OutsideFigures, PlanFigures
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.predicting.prediction import predict as script
from ullage.predicting.prediction.data.prediction import Growth, HostRead, LineUse, Picture, Step
from ullage.predicting.prediction.data.run_result import (
    Alive,
    AtOom,
    Elsewhere,
    ExitReport,
    Measured,
    OomLevels,
    Outcome,
    RunResult,
    TakenOutside,
)
from ullage.predicting.prediction.process.listener import ChildReport, Refusal
from ullage.predicting.prediction.request import ChildRequest, Request

LINE = LineUse(role="gradients", file="a.py", line=3, function="f", phase="backward", bytes=8, blocks=1)
MEASURED = Measured(
    device=1,
    peak_allocated_bytes=5,
    peak_reserved_bytes=9,
    reserved_at_peak_bytes=8,
    peak=Alive(roles={"gradients": 5}, lines=[LINE]),
    role_peaks={"gradients": 6},
    steps=[
        Step(
            step=1,
            peak_allocated_bytes=5,
            peak_reserved_bytes=9,
            end_allocated_bytes=4,
            oom=False,
            complete=True,
        )
    ],
    settled=True,
    growth=Growth(bytes_per_step=2, file="a.py", line=4),
    timeline={"allocated_bytes": [1, 5], "step_ends": [1]},
    history_is_partial=False,
    cudnn_version=91900,
    cudnn=CudnnPlans(
        by_source={
            "cudnn": PlanFigures(
                runs=1,
                problems=1,
                largest_tensor_bytes=2,
                largest_workspace_bytes=3,
                most_below_bytes=0,
                most_above_bytes=0,
            )
        },
        reasons=("it is busy",),
    ),
    guesses={"rnn": GuessFigures(count=1, guessed_bytes=4, below_bytes=1, above_bytes=2, expected_below_bytes=0)},
    elsewhere=Elsewhere(ties=1, low_bytes=7, high_bytes=9, fits_somewhere=True, is_certain=True),
    picture=Picture(
        by_role={"gradients": [1, 5]},
        tree=[("gradients", "Net.layer", "a.py:3 f", 5, 1)],
        segments=[{"address": 512, "size": 9, "blocks": [[0, 5, "gradients"]]}],
    ),
    at_oom=AtOom(
        levels=OomLevels(requested_bytes=6, allocated_bytes=5, reserved_bytes=9),
        free_bytes=-1,
        limit_bytes=8,
        alive=Alive(roles={}, lines=[]),
    ),
)
RESULT = RunResult(
    outcome=Outcome(kind="oom", type="OutOfMemoryError", text="CUDA out of memory.", file="a.py", line=3),
    torch="2.11.0",
    imported=True,
    import_seconds=1.5,
    step_seconds=[0.25],
    notes=["a note"],
    oom_count=1,
    reads=[HostRead(file=None, line=None, op="nonzero", count=1, bytes=8, kind="shape", certainty="drawn")],
    unwritten={"cublas:cublasFoo": 2},
    outside=TakenOutside(
        by_library={"libfoo.so": OutsideFigures(calls=1, bytes=2, peak_bytes=3, managed_peak_bytes=4)},
        managed_on_card_bytes=5,
        peak_used_bytes=6,
    ),
    lost_entries=0,
    compiled_graphs=2,
    architectures=["sm_75"],
    measured=MEASURED,
)


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        replace(RESULT, measured=replace(MEASURED, growth=None, elsewhere=None, picture=None, at_oom=None)),
        replace(RESULT, measured=None, snapshot_error="the script allocated nothing on the GPU"),
    ],
)
def test_a_result_arrives_as_it_was_sent(result: RunResult) -> None:
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_request_arrives_as_it_was_sent() -> None:
    sent = Request.of("a.py", ("--size", "3"), gpu="T4", snapshot="b").for_child()
    assert ChildRequest.from_json(json.loads(json.dumps(sent.to_json()))) == sent


@pytest.mark.parametrize("name", ["torch", "outcome"])
def test_a_field_that_is_missing_or_unknown_is_an_error(name: str) -> None:
    data = RESULT.to_json()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        RunResult.from_json(data | {"nothing": 1})
    del data[name]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
        RunResult.from_json(data)


@pytest.mark.parametrize(("name", "kind"), [("ScriptError", ScriptError), ("SettingsError", UllageError)])
def test_an_error_of_ours_in_the_child_is_one_in_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[UllageError]
) -> None:
    """One that another module than `_errors` defines is told as a plain error, with its text."""
    monkeypatch.setattr(
        script,
        "find_torch",
        lambda: TorchBuild(version="2.11.0", cuda=(13, 0), cudnn=91900, folder=tmp_path, planning=()),
    )
    monkeypatch.setattr(
        script, "run", lambda *_: ChildReport(refused=Refusal(type=name, text="the sentence that says what"))
    )
    path = tmp_path / "a.py"
    path.write_text("")
    with pytest.raises(UllageError, match="the sentence that says what") as raised:
        script.predict(Request.of(path, gpu="T4"))
    assert type(raised.value) is kind


ENDED = Outcome(kind="ended")
UNCAUGHT = Outcome(kind="error", type="ValueError", text="no data")
RAN_OUT = Outcome(kind="oom", type="OutOfMemoryError")


@pytest.mark.parametrize(
    ("noted", "of_success", "did_nothing", "status", "expected"),
    [
        (ENDED, ENDED, False, 0, ENDED),
        (ENDED, ENDED, True, 0, None),
        (ENDED, ENDED, True, 3, Outcome(kind="error", type="SystemExit", exit_code=3)),
        (ENDED, ENDED, False, None, ENDED),  # its last message did not arrive
        (UNCAUGHT, ENDED, True, 1, UNCAUGHT),
        (UNCAUGHT, ENDED, False, None, UNCAUGHT),  # KeyboardInterrupt: the interpreter ends by the signal
        (UNCAUGHT, ENDED, False, 0, ENDED),
        (UNCAUGHT, ENDED, True, 0, None),
        (UNCAUGHT, ENDED, False, 7, Outcome(kind="error", type="SystemExit", exit_code=7)),
        (RAN_OUT, RAN_OUT, False, 1, RAN_OUT),
        (RAN_OUT, RAN_OUT, False, 7, RAN_OUT),
        (RAN_OUT, RAN_OUT, False, 0, RAN_OUT),  # the script has handled it, and given up
    ],
)
def test_what_a_process_tells_at_its_exit_is_judged_by_its_status(
    noted: Outcome, of_success: Outcome, did_nothing: bool, status: int | None, expected: Outcome | None
) -> None:
    report = ExitReport(result=replace(RESULT, outcome=noted), outcome_of_success=of_success, did_nothing=did_nothing)
    found = ExitReport.from_json(json.loads(json.dumps(report.to_json()))).result_with(status)
    assert (found and found.outcome) == expected
