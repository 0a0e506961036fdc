"""`ullage predict`: will this script fit on that card?"""

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from ullage.base.errors import UsageError, quoted
from ullage.cli import options
from ullage.cli.progress import with_progress
from ullage.cli.show import show

if TYPE_CHECKING:
    from ullage.predicting.prediction.data.prediction import Prediction

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage predict train.py --gpu 'RTX 3060'\n\n"
    "ullage predict train.py --batch-size 8 --gpu T4 --steps 5\n\n"
    "ullage predict train.py --gpu 24GiB --arch sm_89 --alloc-conf expandable_segments:True\n\n"
    "ullage predict --gpu H100 --count 8 torchrun --nproc-per-node 8 train.py --batch-size 4\n\n"
    "ullage predict --gpu H100 -m package.train (also trl, accelerate launch, deepspeed, a notebook)\n\n"
    "ullage predict --gpu H100 train.py -- --steps 1000 (after --, every option is the script's)\n\n"
    f"{options.WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 fits, 1 does not fit, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)
_OWN: Final = frozenset({"context", "script", "rank", "context_size", "html", "as_json", "advise"})
"""Parameters of the command that are not handed on as they are."""
_NOT_ADVISED: Final = frozenset({"html", "progress"})
"""Parameters of `ullage.advise` that are not those of the prediction."""


def predict(
    context: typer.Context,
    script: options.Script,
    gpu: options.Card,
    steps: Annotated[
        int | None, typer.Option(help="Stop after this many optimizer steps. [default: 3, and up to 6 more to settle]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after this time in any case.")] = 300.0,
    arch: options.Arch = None,
    count: Annotated[int, typer.Option(help="How many such cards the script sees.")] = 1,
    world_size: Annotated[
        int | None, typer.Option(help="Run as one rank of so many (of any parallel layout), in one process.")
    ] = None,
    rank: Annotated[str, typer.Option(help="Which rank; all: each in turn, and the answer for the fullest.")] = "0",
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF for the run.")] = None,
    total_memory: options.TotalMemory = None,
    context_size: options.ContextSize = None,
    cudnn_workspace: options.CudnnWorkspace = None,
    placement: options.Placement = "linux",
    values: options.Values = "auto",
    values_seed: options.Seed = 0,
    draws: options.Draws = 3,
    routing: options.Routing = "auto",
    as_json: options.Json = False,
    snapshot: Annotated[Path | None, typer.Option(help="Write a PyTorch memory snapshot (for memory_viz).")] = None,
    html: options.Page = None,
    beside_eager: Annotated[bool, typer.Option(help="Run a script with torch.compile again without it.")] = True,
    output: Annotated[bool, typer.Option("--output", help="Show what the script prints, on standard error.")] = False,
    processes: Annotated[
        str, typer.Option(help="Of a launcher's processes: alone (one rank, without the others) or real (all of them).")
    ] = "alone",
    until: Annotated[
        str | None, typer.Option(help="Go on past the steps: to the first eval or save after one, or to the end.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="ARGUMENTS", help="Run it once more with these arguments too, to resume from a save."),
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="The host's memory of one node (64GiB): with it, the host decides too.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Write the lines that ask for what was found: slurm or k8s.")
    ] = None,
    batches: options.Batches = None,
    minutes: options.Minutes = 5.0,
    random_weights: options.RandomWeights = False,
    config: options.Config = None,
    made_up_data: options.MadeUpData = None,
    lengths: options.Lengths = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Where it does not fit, find what to change too, as ullage advise does.")
    ] = False,
) -> None:
    """Run a script or a command for a few steps on a GPU that is not there, and say whether it fits.

    The script runs unmodified, with PyTorch's own allocator, on an emulated card: every byte is PyTorch's answer, and
    no GPU is needed or touched.
    """
    given = dict(locals())  # options have the names that `ullage.predict` has
    # Here, because what runs a script is not for those who ask another command.
    from ullage.api.predict import predict as ask
    from ullage.api.values import check_page
    from ullage.predicting.prediction.description.describe import describe

    check_page(html, script, *([snapshot] if snapshot else []))
    chosen = {name: value for name, value in given.items() if name not in _OWN}
    chosen |= {"context": context_size, "rank": _rank(rank), "picture": html is not None}
    prediction = with_progress(lambda progress: ask(script, context.args, **chosen, progress=progress), live=not output)
    is_advised = advise and _is_advised(prediction)
    if not as_json or not is_advised:
        show(describe(prediction), prediction.to_json() if as_json else None, page=html)
    if is_advised:
        _advise(prediction, script, context.args, chosen, as_json=as_json)
    raise typer.Exit(_exit_code(prediction, snapshot))


def _is_advised(prediction: "Prediction") -> bool:
    from ullage.predicting.prediction.data.prediction import Verdict
    from ullage.predicting.prediction.description.describe import is_of_card

    return prediction.verdict is Verdict.DOES_NOT_FIT and is_of_card(prediction)


def _advise(
    prediction: "Prediction", script: Path, arguments: list[str], chosen: dict[str, Any], *, as_json: bool
) -> None:
    """Find what to change, and show it behind the prediction, or with it in one JSON."""
    from ullage.api.advise import advise as ask
    from ullage.predicting.advice.describe import describe

    names = inspect.signature(ask).parameters.keys() - _NOT_ADVISED
    same = {name: value for name, value in chosen.items() if name in names}
    if same["rank"] == "all":
        same["rank"] = prediction.rank
    answer = with_progress(lambda progress: ask(script, arguments, **same, progress=progress))
    whole = {**prediction.to_json(), "advice": answer.to_json()} if as_json else None
    show(describe(answer), whole, page=None)


def _exit_code(prediction: "Prediction", snapshot: Path | None) -> int:
    if prediction.snapshot_error:
        sys.stderr.write(f"error: the snapshot {snapshot} was not written: {prediction.snapshot_error}\n")
        return 2
    return prediction.verdict.exit_code


def _rank(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"--rank {quoted(text)} is not a rank; expected a number from 0 on, or all")
    return int(text)
