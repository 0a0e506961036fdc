"""`ullage predict`: will this script fit on that card?"""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ullage._errors import UsageError
from ullage._output import check_output
from ullage.cli.progress import with_progress
from ullage.cli.show import show
from ullage.cli.values import WORKSPACES, size_of, steps_of
from ullage.prediction.compiled import predict_beside_eager
from ullage.prediction.describe import describe
from ullage.prediction.ranks import predict_all_ranks
from ullage.prediction.request import Request
from ullage.prediction.script import predict as run_prediction

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage predict train.py --gpu 'RTX 3060'\n\n"
    "ullage predict train.py --batch-size 8 --gpu T4 --steps 5\n\n"
    "ullage predict train.py --gpu 24GiB --arch sm_89 --alloc-conf expandable_segments:True\n\n"
    "ullage predict --gpu H100 train.py -- --steps 1000 (after --, every option is the script's)\n\n"
    f"{WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 fits, 1 does not fit, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)


def predict(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Your training script; options that ullage does not know go to it.")],
    gpu: Annotated[str, typer.Option(help="A card's name ('RTX 4090', see: ullage gpus) or a size (24GiB).")],
    steps: Annotated[
        int | None, typer.Option(help="Stop after this many optimizer steps. [default: 3, and up to 6 more to settle]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after this time, whatever happened.")] = 300.0,
    arch: Annotated[str | None, typer.Option(help="Architecture of a card given by size, such as sm_90.")] = None,
    count: Annotated[int, typer.Option(help="How many such cards the script sees.")] = 1,
    world_size: Annotated[
        int | None, typer.Option(help="Run as one rank of so many (DDP, FSDP, tensor parallel), in one process.")
    ] = None,
    rank: Annotated[str, typer.Option(help="Which rank; all: each in turn, and the answer for the fullest.")] = "0",
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF for the run.")] = None,
    total_memory: Annotated[str | None, typer.Option(help="The card's memory, in place of the known one.")] = None,
    context_size: Annotated[str | None, typer.Option("--context", help="What the CUDA context takes.")] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="Workspace of every cuDNN plan, in place of cuDNN's own (see ULLAGE_CUDNN).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
    snapshot: Annotated[Path | None, typer.Option(help="Write a PyTorch memory snapshot (for memory_viz).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")] = None,
    beside_eager: Annotated[bool, typer.Option(help="Run a script with torch.compile once more without.")] = True,
    output: Annotated[bool, typer.Option("--output", help="Show what the script prints, on standard error.")] = False,
) -> None:
    """Run a script for a few steps on a GPU that is not there, and say whether it fits.

    The script runs unmodified, with PyTorch's own allocator, on an emulated card: every byte is PyTorch's answer, and
    no GPU is needed or touched.
    """
    some, more = steps_of(steps)
    request = Request(
        script=script,
        arguments=tuple(context.args),
        gpu=gpu,
        arch=arch,
        count=count,
        world_size=world_size,
        rank=_rank(rank),
        steps=some,
        more_steps=more,
        seconds=seconds,
        alloc_conf=alloc_conf,
        total_memory_bytes=size_of(total_memory, "--total-memory"),
        context_bytes=size_of(context_size, "--context"),
        cudnn_workspace_bytes=size_of(cudnn_workspace, "--cudnn-workspace"),
        snapshot=snapshot,
        picture=html is not None,
        echo=output,
    )
    if html is not None:
        check_output("--html", html, inputs=(script, *([snapshot] if snapshot else [])))
    work = predict_all_ranks if rank == "all" else predict_beside_eager if beside_eager else run_prediction
    prediction = with_progress(lambda tell: work(request, progress=tell), live=not output)
    show(describe(prediction), prediction.to_json() if as_json else None, page=html)
    if prediction.snapshot_error:
        sys.stderr.write(f"error: the snapshot {snapshot} was not written: {prediction.snapshot_error}\n")
        raise typer.Exit(2)
    raise typer.Exit(prediction.verdict.exit_code)


def _rank(text: str) -> int:
    if text == "all":
        return 0
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"--rank {text!r} is no rank; expected a number from 0 on, or all")
    return int(text)
