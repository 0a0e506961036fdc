"""`ullage fit`: the largest batch that fits."""

from typing import Annotated, Final

import typer

from ullage.cli import options
from ullage.cli.progress import with_progress
from ullage.cli.show import show

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage fit train.py --gpu 'RTX 4090' --vary --batch-size\n\n"
    "ullage fit train.py --gpu T4 --vary --batch-size=8..256:8 --margin 5%\n\n"
    "ullage fit train.py --gpu H100 --vary --batch-size --vary --length=256..4096 (a frontier)\n\n"
    "ullage fit train.py --gpu H100 --vary batch_size (set as batch_size=8, as hydra wants it)\n\n"
    f"{options.WORKSPACES}\n\n"
    "[bold]Exit code[/] 0 a value fits, 1 none does, 2 wrong usage, 3 the script failed, 4 cannot be judged."
)
_OWN: Final = frozenset({"context", "script", "context_size", "html", "as_json"})
"""Parameters of the command that are not handed on as they are."""


def run_fit(
    context: typer.Context,
    script: options.Script,
    gpu: options.Card,
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
    chosen = {name: value for name, value in given.items() if name not in _OWN}
    chosen |= {"context": context_size, "picture": html is not None}
    answer = with_progress(lambda progress: ask(script, context.args, **chosen, progress=progress))
    show(describe(answer), answer.to_json() if as_json else None, page=html)
    raise typer.Exit(answer.exit_code)
