"""`ullage doctor`: what is configured here, what is wrong with it, and what to do?"""

from typing import Annotated, Final

import typer

from ullage.cli.command import Json
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage doctor (in the shell, container or job whose settings are in doubt)\n\n"
    "ullage doctor --gpu 'RTX 4090' (the same settings and torch, with that card emulated)\n\n"
    "[bold]Within a program[/] import ullage; ullage.diagnose().findings\n\n"
    f"{exit_codes('doctor')}"
)


def doctor(
    gpu: Annotated[
        str | None, typer.Option(help="Emulate this GPU. By default, the GPUs of this machine are examined.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which settings of memory are in force here, what is wrong, and what to do.

    The allocator itself is asked what it has read, in a process of its own; the driver says who is on the cards. Works
    without a card and without torch, as far as that goes. No process's arguments are read.
    """
    from ullage.running.diagnosis.describe import describe
    from ullage.running.diagnosis.diagnosis import diagnose

    diagnosis = diagnose(gpu)
    show(describe(diagnosis), diagnosis.to_json() if as_json else None, page=None)
    raise typer.Exit(diagnosis.exit_code)
