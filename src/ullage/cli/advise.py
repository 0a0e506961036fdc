"""`ullage advise`: what to change so that a script fits."""

import sys
from typing import Any, Final

import typer

from ullage.base.errors import ExitCode
from ullage.cli.command import Json, Script, with_options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show, with_progress
from ullage.options import AdviseOptions

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage advise train.py --gpu 'RTX 3060'\n\n"
    "ullage advise train.py --batch-size 16 --gpu T4 --patch advice.diff && git apply advice.diff\n\n"
    "ullage advise train.py --gpu T4 --vary --batch-size\n\n"
    "The script's file is not edited: every change is made from outside, in a run on an emulated card.\n\n"
    f"{exit_codes('advise')}"
)


@with_options(AdviseOptions)
def advise(command: typer.Context, script: Script, *, as_json: Json = False, **given: Any) -> None:
    """Find what to change so that a script fits on an emulated GPU.

    Checkpointing, mixed precision, accumulation, leaner optimizers and more: each is run on the script, unmodified, and
    the cheapest combination that fits is written as a diff, which is run again.
    """
    # Here, because what runs a script is not for those who ask another command.
    from ullage.api.advise import advise as ask
    from ullage.api.advise import check_patch, write_patch
    from ullage.api.values import check_page
    from ullage.predicting.advice.describe import describe

    page, patch = given.pop("html"), given.pop("patch")
    check_page(page, script)
    check_patch(patch, given["vary"], script, page)
    answer = with_progress(lambda progress: ask(script, command.args, progress=progress, **given))
    show(describe(answer), answer.to_json() if as_json else None, page=page)
    if patch is not None:  # behind the answer, which is not lost where the disk is full
        is_written = write_patch(answer, patch)
        sys.stderr.write(f"ullage: {'wrote' if is_written else 'there is no diff to write into'} {patch}\n")
    raise typer.Exit(answer.exit_code if answer.is_complete else ExitCode.INTERRUPTED)
