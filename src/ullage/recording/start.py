"""Begin to record in a process that a run has started, as soon as the script imports torch. No torch until then."""

from types import ModuleType

from ullage.recording.plan import Plan, report_trouble
from ullage.tracing.torch_import import ImportWatch


def start() -> None:
    """Wait for torch. Called by `sitecustomize` in every Python process of a run.

    Raises:
        UsageError: what the environment says of a run cannot be read.
    """
    plan = Plan.of()
    if plan is not None:
        ImportWatch("torch", before=lambda: None, after=lambda torch: _record(plan, torch)).install()


def _record(plan: Plan, torch: ModuleType) -> None:
    try:
        if torch.version.cuda is not None:
            from ullage.recording.recorder import Recorder

            Recorder(plan).install()
    except Exception as error:
        report_trouble("nothing is recorded", error)
