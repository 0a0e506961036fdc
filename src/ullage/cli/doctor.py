"""The command `ullage doctor`: check the memory settings and the GPUs of this machine."""

from typing import Annotated, Final

import typer

from ullage.cli.command import Json, epilog_of
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show

EPILOG: Final = epilog_of(
    "ullage doctor",
    "ullage doctor --gpu 'RTX 4090'",
    "Run ullage doctor in the shell, container or job to check. [bold]In Python[/] ullage.diagnose().findings",
    exit_codes("doctor"),
    page="doctor.md",
)


def doctor(
    gpu: Annotated[
        str | None,
        typer.Option(help="Emulate this GPU and examine it. By default, the GPUs of this machine are examined."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check which memory settings are active on this machine, what is wrong with them, and what to do.

    A separate process reports the settings that PyTorch's allocator has read. The driver reports which processes use
    the GPUs. `ullage doctor` also works without a GPU and without torch, but then checks less. It does not read the
    arguments of processes.
    """
    from ullage.running.diagnosis.describe import describe
    from ullage.running.diagnosis.diagnosis import diagnose

    diagnosis = diagnose(gpu)
    show(describe(diagnosis), diagnosis.to_json() if as_json else None, page=None)
    raise typer.Exit(diagnosis.exit_code)
