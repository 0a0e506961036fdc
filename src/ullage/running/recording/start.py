"""Starts recording in a process of a run as soon as the script imports torch; until then torch is not imported."""

from types import ModuleType

from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.running.recording.plan import RecordingPlan, report_trouble


def start() -> None:
    """Start to record once torch is imported, which is about to happen. Called by `sitecustomize`.

    Raises:
        UsageError: the variable that describes the run cannot be read.
    """
    plan = RecordingPlan.of()
    if plan is not None:
        ImportWatch("torch", before=lambda: None, after=lambda torch: _record(plan, torch)).install()


def _record(plan: RecordingPlan, torch: ModuleType) -> None:
    try:
        if getattr(getattr(torch, "version", None), "cuda", None) is not None:  # another module may have the name
            from ullage.running.recording.recorder import Recorder

            Recorder(plan).install()
    except Exception as error:
        report_trouble("nothing is recorded", error)
