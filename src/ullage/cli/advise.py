"""The command `ullage advise`: find the changes with which a script fits on a GPU."""

import sys
from typing import Any, Final

import typer

from ullage.base.errors import ExitCode
from ullage.cli.command import Json, Script, epilog_of, with_options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show, with_progress
from ullage.options import AdviseOptions

EPILOG: Final = epilog_of(
    "ullage advise train.py --gpu 'RTX 3060'",
    "ullage advise train.py --batch-size 16 --gpu T4 --patch advice.diff && git apply advice.diff",
    exit_codes("advise"),
    page="advise.md",
)


@with_options(AdviseOptions)
def advise(command: typer.Context, script: Script, *, as_json: Json = False, **given: Any) -> None:
    """Find the changes with which a script fits on a GPU, without the GPU.

    Activation checkpointing, mixed precision, gradient accumulation, smaller optimizers and other changes are tried:
    the unmodified script runs with each of them on an emulated GPU. The cheapest combination that fits is written as a
    diff, and the changed script is run again to prove it. The script's file is not edited.
    """
    # Imported only here, because other commands do not need the modules that run a script.
    from ullage.api.advise import advise as ask
    from ullage.api.advise import check_patch, write_patch
    from ullage.api.values import check_page
    from ullage.predicting.advice.describe import describe
    from ullage.predicting.editing.diff import command_to_apply

    page, patch = given.pop("html"), given.pop("patch")
    check_page(page, script)
    check_patch(patch, given["vary"], script, page)
    answer = with_progress(lambda progress: ask(script, command.args, progress=progress, **given))
    show(describe(answer), answer.to_json() if as_json else None, page=page)
    if patch is not None:  # written after the answer is printed, so that a full disk does not lose it
        is_written = write_patch(answer, patch)
        text = (
            f"wrote {patch}; apply it with: {command_to_apply(patch, answer.written.root)}"
            if is_written and answer.written is not None
            else f"{patch} was not written, because the advice does not contain a diff"
        )
        sys.stderr.write(f"ullage: {text}\n")
    raise typer.Exit(answer.exit_code if answer.is_complete else ExitCode.INTERRUPTED)
