"""`ullage advise`: what to change so that a script fits."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli import options
from ullage.cli.progress import with_progress
from ullage.cli.show import show

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage advise train.py --gpu 'RTX 3060'\n\n"
    "ullage advise train.py --batch-size 16 --gpu T4 --patch advice.diff && git apply advice.diff\n\n"
    "ullage advise train.py --gpu T4 --vary --batch-size\n\n"
    "The script's file is not edited: every change is made from outside, in a run on an emulated card.\n\n"
    "[bold]Exit code[/] 0 fits (as it is, or with the advice), 1 nothing that was tried fits, 2 wrong usage, "
    "3 the script failed, 4 cannot be judged."
)
INTERRUPTED: Final = 130
"""The exit code of a program that Ctrl-C has ended, as shells have it."""
_OWN: Final = frozenset({"context", "script", "context_size", "html", "as_json", "patch"})
"""Parameters of the command that are not handed on as they are."""


def advise(
    context: typer.Context,
    script: options.Script,
    gpu: options.Card,
    patch: Annotated[
        Path | None, typer.Option(help="Write the lines to change as a diff, for `git apply`.", metavar="FILE")
    ] = None,
    vary: Annotated[
        str | None, typer.Option(help="Find the largest value of an option: --batch-size, --batch-size=8..64:8.")
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Run as one rank of so many, alone in one process.")] = None,
    rank: Annotated[int, typer.Option(help="Which rank.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps of each run. [default: 3, and up to 6 more to settle]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop each run after this time.")] = 300.0,
    arch: options.Arch = None,
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF for the runs.")] = None,
    total_memory: options.TotalMemory = None,
    context_size: options.ContextSize = None,
    cudnn_workspace: options.CudnnWorkspace = None,
    html: options.Page = None,
    placement: options.Placement = "linux",
    values: options.Values = "auto",
    values_seed: options.Seed = 0,
    routing: options.Routing = "auto",
    as_json: options.Json = False,
    random_weights: options.RandomWeights = False,
    config: options.Config = None,
    made_up_data: options.MadeUpData = None,
    lengths: options.Lengths = None,
) -> None:
    """Find what to change so that a script fits on a GPU that is not there.

    Checkpointing, mixed precision, accumulation, leaner optimizers and more: each is run on the script, unmodified, and
    the cheapest combination that fits is written as a diff, which is run again.
    """
    given = dict(locals())  # options have the names that `ullage.advise` has
    # Here, because what runs a script is not for those who ask another command.
    from ullage.api.advise import advise as ask
    from ullage.api.advise import check_patch, write_patch
    from ullage.api.values import check_page
    from ullage.predicting.advice.describe import describe

    check_page(html, script)
    check_patch(patch, vary, script)
    chosen = {name: value for name, value in given.items() if name not in _OWN}
    chosen["context"] = context_size
    answer = with_progress(lambda progress: ask(script, context.args, **chosen, progress=progress))
    show(describe(answer), answer.to_json() if as_json else None, page=html)
    if patch is not None:  # behind the answer, which is not lost where the disk is full
        is_written = write_patch(answer, patch)
        sys.stderr.write(f"ullage: {'wrote' if is_written else 'there is no diff to write into'} {patch}\n")
    raise typer.Exit(answer.exit_code if answer.is_complete else INTERRUPTED)
