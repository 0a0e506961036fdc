"""`ullage fit`: the largest batch that fits."""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage.cli.progress import with_progress
from ullage.cli.show import show
from ullage.cli.values import (
    SCRIPT_HELP,
    WORKSPACES,
    BatchesOption,
    ConfigOption,
    DrawsOption,
    LengthsOption,
    MadeUpDataOption,
    MinutesOption,
    PlacementOption,
    RandomWeightsOption,
    RoutingOption,
    SeedOption,
    ValuesOption,
)

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage fit train.py --gpu 'RTX 4090' --vary --batch-size\n\n"
    "ullage fit train.py --gpu T4 --vary --batch-size=8..256:8 --margin 5%\n\n"
    "ullage fit train.py --gpu H100 --vary --batch-size --vary --length=256..4096 (a frontier)\n\n"
    "ullage fit train.py --gpu H100 --vary batch_size (set as batch_size=8, as hydra wants it)\n\n"
    f"{WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 a value fits, 1 none does, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)
_OWN: Final = frozenset({"context", "script", "context_size", "html", "as_json"})
"""Parameters of the command that are not handed on as they are."""


def run_fit(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help=SCRIPT_HELP, metavar="COMMAND...")],
    gpu: Annotated[str, typer.Option(help="A card's name ('RTX 4090', see: ullage gpus) or a size (24GiB).")],
    vary: Annotated[
        list[str], typer.Option(help="The script's option to vary: --batch-size, --batch-size=8..64:8. At most twice.")
    ],
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
    arch: Annotated[str | None, typer.Option(help="Architecture of a card given by size, such as sm_90.")] = None,
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF for the runs.")] = None,
    total_memory: Annotated[str | None, typer.Option(help="The card's memory, in place of the known one.")] = None,
    context_size: Annotated[str | None, typer.Option("--context", help="What the CUDA context takes.")] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="Workspace of every cuDNN plan, in place of cuDNN's own (see ULLAGE_CUDNN).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")] = None,
    placement: PlacementOption = "linux",
    values: ValuesOption = "auto",
    values_seed: SeedOption = 0,
    draws: DrawsOption = 1,
    routing: RoutingOption = "drawn",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
    batches: BatchesOption = None,
    minutes: MinutesOption = 5.0,
    random_weights: RandomWeightsOption = False,
    config: ConfigOption = None,
    made_up_data: MadeUpDataOption = None,
    lengths: LengthsOption = None,
) -> None:
    """Find the largest batch size (or any option's value) with which a script fits on a GPU that is not there.

    Every value is run, in a process of its own, two at a time: the answer fits and the next does not, both proved.
    """
    given = dict(locals())  # options have the names that `ullage.fit` has
    # Here, because what runs a script is not for those who ask another command.
    from ullage.api.fit import fit as ask
    from ullage.api.values import check_page
    from ullage.fitting.describe import describe

    check_page(html, script)
    options = {name: value for name, value in given.items() if name not in _OWN}
    options |= {"context": context_size, "picture": html is not None}
    answer = with_progress(lambda progress: ask(script, context.args, **options, progress=progress))
    show(describe(answer), answer.to_json() if as_json else None, page=html)
    raise typer.Exit(answer.exit_code)
