"""`ullage fit`: the largest batch that fits."""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage._errors import UsageError
from ullage._output import check_output
from ullage._units import is_size, parse_bytes
from ullage.cli.progress import with_progress
from ullage.cli.show import show
from ullage.cli.values import WORKSPACES, size_of, steps_of
from ullage.fitting.axis import Axis
from ullage.fitting.describe import describe
from ullage.fitting.fit import Fit, fit
from ullage.gpus import find_gpu
from ullage.prediction.request import Request

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage fit train.py --gpu 'RTX 4090' --vary --batch-size\n\n"
    "ullage fit train.py --gpu T4 --vary --batch-size=8..256:8 --margin 5%\n\n"
    "ullage fit train.py --gpu H100 --vary --batch-size --vary --length=256..4096 (a frontier)\n\n"
    "ullage fit train.py --gpu H100 --vary batch_size (set as batch_size=8, as hydra wants it)\n\n"
    f"{WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 a value fits, 1 none does, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)


def run_fit(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Your training script; options that ullage does not know go to it.")],
    gpu: Annotated[str, typer.Option(help="A card's name ('RTX 4090', see: ullage gpus) or a size (24GiB).")],
    vary: Annotated[
        list[str], typer.Option(help="The script's option to vary: --batch-size, --batch-size=8..64:8. At most twice.")
    ],
    margin: Annotated[str, typer.Option(help="What has to stay free on the card: 5% or 1GiB.")] = "0%",
    levers: Annotated[bool, typer.Option(help="Try allocator settings and optimizer defaults too.")] = True,
    world_size: Annotated[int | None, typer.Option(help="Run as one rank of so many, alone in one process.")] = None,
    rank: Annotated[int, typer.Option(help="Which rank.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps of each run. [default: 3, and up to 6 more to settle]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop each run after this time.")] = 300.0,
    arch: Annotated[str | None, typer.Option(help="Architecture of a card given by size, such as sm_90.")] = None,
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF for the runs.")] = None,
    total_memory: Annotated[str | None, typer.Option(help="The card's memory, in place of the known one.")] = None,
    context_size: Annotated[str | None, typer.Option("--context", help="What the CUDA context takes.")] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="Workspace of every cuDNN plan, in place of cuDNN's own (see ULLAGE_CUDNN).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
) -> None:
    """Find the largest batch size (or any option's value) with which a script fits on a GPU that is not there.

    Every value is run, in a process of its own, two at a time: the answer fits and the next does not, both proved.
    """
    if len(vary) > 2:
        raise UsageError(f"--vary is given {len(vary)} times; expected once, or twice for a frontier")
    axes = [Axis.parse(text) for text in vary]
    if len({axis.option for axis in axes}) < len(axes):
        raise UsageError(f"--vary {axes[0].option} is given twice; expected two different options")
    some, more = steps_of(steps)
    request = Request(
        script=script,
        arguments=tuple(context.args),
        gpu=gpu,
        arch=arch,
        world_size=world_size,
        rank=rank,
        steps=some,
        more_steps=more,
        seconds=seconds,
        alloc_conf=alloc_conf,
        total_memory_bytes=size_of(total_memory, "--total-memory"),
        context_bytes=size_of(context_size, "--context"),
        cudnn_workspace_bytes=size_of(cudnn_workspace, "--cudnn-workspace"),
        picture=html is not None,
    )
    if html is not None:
        check_output("--html", html, inputs=(script,))
    total = request.total_bytes(find_gpu(gpu, arch=arch))
    margin_bytes = _margin(margin, total)
    answer: Fit = with_progress(
        lambda tell: fit(
            request,
            axes[0],
            second=axes[1] if len(axes) == 2 else None,
            margin_bytes=margin_bytes,
            levers=levers,
            progress=tell,
        )
    )
    show(describe(answer), answer.to_json() if as_json else None, page=html)
    raise typer.Exit(answer.exit_code)


def _margin(text: str, total_bytes: int) -> int:
    if is_size(text):
        return parse_bytes(text)
    number = text.strip().removesuffix("%")
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0
    if not text.strip().endswith("%") or not 0 <= percent < 100:
        raise UsageError(f"--margin {text!r} is no part of a card's memory; expected a percentage such as 5%, or 1GiB")
    return int(total_bytes * percent / 100)
