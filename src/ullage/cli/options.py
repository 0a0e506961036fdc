"""Values of options that several subcommands have, and their help texts."""

from pathlib import Path
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
RandomWeightsOption = Annotated[
    bool, typer.Option("--random-weights", help="Make weights that are not here up from their configuration.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="A folder with the config.json of such models.")]
MadeUpDataOption = Annotated[
    str | None,
    typer.Option(help="Rows for a data set that is not here: text:length=2048,rows=64, chat, preference, image:224."),
]
LengthsOption = Annotated[
    Path | None, typer.Option(help="A file with the lengths of such rows: one a line, or LENGTH,COUNT.")
]
