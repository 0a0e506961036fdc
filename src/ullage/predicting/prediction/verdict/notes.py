"""What a reader needs to know of a run to judge how far the figures of its prediction can be trusted."""

from typing import Final

from ullage.gpu.emulator.torch_build import TESTED, TorchBuild
from ullage.predicting.prediction.data.prediction import CudnnUse
from ullage.predicting.prediction.data.run_result import RunResult
from ullage.predicting.prediction.phases.name import PhaseName
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict import workspace

_WANTED: Final = {"eval": PhaseName.EVALUATION, "save": PhaseName.SAVING}


def notes_of(request: Request, torch: TorchBuild, result: RunResult, cudnn: CudnnUse) -> list[str]:
    """Return the notes of a prediction: those that the script's process has made, and those by its result."""
    notes = list(result.notes)
    if result.values.failures:
        notes.append(
            "the host could not compute " + "; ".join(f"{name} ({why})" for name, why in result.values.failures.items())
        )
    notes += workspace.notes_of(cudnn, torch)
    notes += result.epoch.notes if result.epoch is not None else []
    if result.unwritten:
        notes.append("CUDA functions answered 'not supported': " + ", ".join(sorted(result.unwritten)))
    if result.world_size:
        notes.append(
            "what a collective used is let go by a thread of PyTorch's that looks a few times a second, so a peak may "
            "differ by a bucket from run to run"
        )
    if result.oom_count and result.outcome.kind != "oom":
        times = "once" if result.oom_count == 1 else f"{result.oom_count} times"
        notes.append(f"memory ran out {times}, and the script went on")
    if result.outcome.kind == "ended" and result.measured is not None and not result.step_seconds:
        notes.append("no optimizer took a step: the whole run counts as one")
    notes += _unreached(request.until, result)
    if result.outcome.kind == "time":
        notes.append(f"stopped after {request.limit_seconds:g} s; give it longer with --seconds")
    if not torch.is_tested:
        notes.append(f"torch {torch.version} is outside the tested range {TESTED[0]} to {TESTED[1]}")
    if result.measured is not None and result.measured.history_is_partial:
        notes.append(
            "PyTorch's memory history was too short for the whole run: the oldest blocks count as not rounded, without "
            "their lines; run fewer steps"
        )
    if result.lost_entries:
        notes.append(f"{result.lost_entries} events were not recorded: the host ran out of memory")
    return notes


def _unreached(until: str | None, result: RunResult) -> list[str]:
    """Return what there is to say where a run did not come as far as it was to."""
    wanted = _WANTED.get(until or "")
    phases = result.measured.phases if result.measured else []
    if wanted is None or any(phase.name == wanted and phase.first_step for phase in phases):
        return []
    if result.outcome.kind == "time":
        return [f"no {wanted} was reached in the given time"]
    return [f"no {wanted} was reached: the script ended before it"] if result.outcome.kind == "ended" else []
