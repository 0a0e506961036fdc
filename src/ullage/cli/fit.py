"""`ullage fit`: the largest batch that fits."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from ullage.base.errors import UsageError
from ullage.cli import options
from ullage.cli.progress import with_progress
from ullage.cli.show import show

if TYPE_CHECKING:
    from ullage.predicting.layouts.layout_fit import LayoutFit

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage fit train.py --gpu 'RTX 4090' --vary --batch-size\n\n"
    "ullage fit train.py --gpu T4 --vary --batch-size=8..256:8 --margin 5%\n\n"
    "ullage fit train.py --gpu H100 --vary --batch-size --vary --length=256..4096 (a frontier)\n\n"
    "ullage fit train.py --gpu H100 --vary batch_size (set as batch_size=8, as hydra wants it)\n\n"
    "ullage fit train.py --gpu H100 --cards 64 --layout 'dp*tp*pp' --layout-map torchtitan --most tp=8 "
    "--vary --training.local_batch_size=1..16\n\n"
    f"{options.WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 a value fits, 1 none does, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)
_OWN: Final = frozenset({"context", "script", "context_size", "html", "as_json"})
"""Parameters of the command that are not handed on as they are."""
_OF_LAYOUT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("layout", "cards", "layout_map", "layout_option", "most", "choose", "rank_order", "item_tokens")),
    **dict.fromkeys(("on", "workers", "store")),
    "ranks": "alike",
    "accumulate": 1,
}
"""The options that only a search over layouts has, with their defaults."""
_NOT_OF_LAYOUT: Final[Mapping[str, Any]] = {
    "changes": True,
    "world_size": None,
    "rank": 0,
    "batches": None,
    "minutes": 5.0,
}
"""Those that it has not."""
_OF_LAYOUTS: Final[dict[str, Any]] = {"rich_help_panel": "Parallel layouts"}


def run_fit(
    context: typer.Context,
    script: options.Script,
    gpu: options.Card,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="The script's option to vary: --batch-size, --batch-size=8..64:8. At most twice."),
    ] = None,
    margin: Annotated[str, typer.Option(help="Memory to leave free on the card: 5% or 1GiB.")] = "0%",
    changes: Annotated[
        bool, typer.Option(help="Also try allocator settings and optimizer defaults, without a change to the script.")
    ] = True,
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
    draws: options.Draws = 1,
    routing: options.Routing = "auto",
    as_json: options.Json = False,
    batches: options.Batches = None,
    minutes: options.Minutes = 5.0,
    random_weights: options.RandomWeights = False,
    config: options.Config = None,
    made_up_data: options.MadeUpData = None,
    lengths: options.Lengths = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Try every parallel layout: dp*tp*pp*cp; dp*tp,ep for experts within dp.", **_OF_LAYOUTS),
    ] = None,
    cards: Annotated[int | None, typer.Option(help="How many cards to lay out.", **_OF_LAYOUTS)] = None,
    layout_map: Annotated[
        str | None,
        typer.Option(
            help="Whose options the script has: torchtitan, megatron, accelerate, deepspeed, lightning.", **_OF_LAYOUTS
        ),
    ] = None,
    layout_option: Annotated[
        list[str] | None,
        typer.Option(help="The script's option for an axis: tp=--tensor-parallel, or tp=env:TP.", **_OF_LAYOUTS),
    ] = None,
    most: Annotated[list[str] | None, typer.Option(help="The largest size of an axis: tp=8.", **_OF_LAYOUTS)] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(help="Values of an option to try with each layout: --zero=1,2,3.", **_OF_LAYOUTS),
    ] = None,
    rank_order: Annotated[
        str | None,
        typer.Option(help="The axes from the outermost to the innermost, if not pp*dp*cp*tp.", **_OF_LAYOUTS),
    ] = None,
    ranks: Annotated[
        str, typer.Option(help="alike: one rank of each kind; stages: one of every pipeline stage.", **_OF_LAYOUTS)
    ] = "alike",
    accumulate: Annotated[int, typer.Option(help="Micro-batches of a step.", **_OF_LAYOUTS)] = 1,
    item_tokens: Annotated[int | None, typer.Option(help="Tokens of an item.", **_OF_LAYOUTS)] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Where to run: local, ray, ray://HOST:PORT, slurm, slurm:partition=NAME.", **_OF_LAYOUTS),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at once on this machine. [default: one for each core]", **_OF_LAYOUTS)
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="File in which results are kept; none: nowhere.", **_OF_LAYOUTS)
    ] = None,
) -> None:
    """Find the largest batch size (or any option's value) with which a script fits on a GPU that is not there.

    Every value is run, in a process of its own, two at a time: the answer fits and the next does not, both proved.
    """
    given = dict(locals())  # options have the names that `ullage.fit` and `ullage.fit_layout` have
    # Here, because what runs a script is not for those who ask another command.
    from ullage.api.fit import fit as ask
    from ullage.api.values import check_page
    from ullage.predicting.fitting.describe import describe

    check_page(html, script)
    chosen = {name: value for name, value in given.items() if name not in _OWN}
    chosen |= {"context": context_size, "picture": html is not None}
    if layout is not None:
        _run_fit_layout(script, context.args, chosen, page=html, as_json=as_json)
    _refuse(chosen, _OF_LAYOUT, "without --layout")
    if vary is None:
        raise UsageError("nothing is to be varied; expected --vary with an option of the script, or --layout")
    chosen = {name: value for name, value in chosen.items() if name not in _OF_LAYOUT}
    answer = with_progress(lambda progress: ask(script, context.args, **chosen, progress=progress))
    show(describe(answer), answer.to_json() if as_json else None, page=html)
    raise typer.Exit(answer.exit_code)


def _run_fit_layout(
    script: Path, arguments: list[str], chosen: dict[str, Any], *, page: Path | None, as_json: bool
) -> NoReturn:
    """Search over layouts; where that is interrupted, show the best so far."""
    from ullage.api.fit_layout import fit_layout as ask
    from ullage.predicting.layouts.describe import describe

    if chosen["cards"] is None:
        raise UsageError("--layout needs the number of cards to lay out; expected --cards 64 beside it")
    _refuse(chosen, _NOT_OF_LAYOUT, "beside --layout")
    chosen = {name: value for name, value in chosen.items() if name not in _NOT_OF_LAYOUT}
    chosen |= {name: chosen[name] or () for name in ("layout_option", "most", "choose")}
    interrupted: list[LayoutFit] = []

    def search(progress: Callable[[str], None]) -> "LayoutFit":
        return ask(script, arguments, **chosen, progress=progress, so_far=interrupted.append)

    try:
        answer = with_progress(search)
    except BaseException:
        for cut in interrupted:
            show(describe(cut), cut.to_json() if as_json else None, page=page)
        raise
    show(describe(answer), answer.to_json() if as_json else None, page=page)
    raise typer.Exit(answer.exit_code)


def _refuse(chosen: dict[str, Any], names: Mapping[str, Any], why: str) -> None:
    """Raise UsageError where an option is given that has no meaning here."""
    for name, default in names.items():
        if chosen[name] != default:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning {why}")
