"""Values of options that several subcommands have, and their help texts."""

from typing import Annotated, Final

import typer

WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions are cuDNN's own, where it is beside torch or where ULLAGE_CUDNN names it, "
    "else estimated. [bold]ullage doctor --gpu T4[/] says which."
)
SCRIPT_HELP: Final = "Your training script or notebook, -m and a module, or a command such as torchrun or trl."
PlacementOption = Annotated[
    str,
    typer.Option(help="Whose driver: linux, wsl, windows, linux-host. Up to torch 2.11 it decides what is reserved."),
]
ValuesOption = Annotated[
    str, typer.Option(help="What is read back from the card: auto, on, off (zero), all (everything is computed).")
]
SeedOption = Annotated[int, typer.Option(help="What values that nobody knows are drawn from.")]
DrawsOption = Annotated[int, typer.Option(help="How many seeds to try where drawn values may decide.")]
BatchesOption = Annotated[
    str | None, typer.Option(help="heaviest: go through an epoch's batches, run the heaviest, foresee the rest.")
]
MinutesOption = Annotated[float, typer.Option(help="The time for --batches, beside --seconds.")]
RoutingOption = Annotated[
    str, typer.Option(help="Experts that drawn scores choose: drawn, balanced, worst, or a skew such as 1.5.")
]
