"""Options that several subcommands have: each once, with its name and its help."""

from pathlib import Path
from typing import Annotated, Final

import typer

WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions are cuDNN's own, where it is beside torch or where ULLAGE_CUDNN names it, "
    "else estimated. [bold]ullage doctor --gpu T4[/] says which."
)
Script = Annotated[
    Path,
    typer.Argument(
        help="Your training script or notebook, -m and a module, or a command such as torchrun or trl.",
        metavar="COMMAND...",
    ),
]
Card = Annotated[str, typer.Option(help="A card's name ('RTX 4090', see: ullage gpus) or a size (24GiB).")]
Arch = Annotated[str | None, typer.Option(help="Architecture of a card given by size, such as sm_90.")]
TotalMemory = Annotated[str | None, typer.Option(help="The card's memory, in place of the known one.")]
ContextSize = Annotated[str | None, typer.Option("--context", help="What the CUDA context takes.")]
CudnnWorkspace = Annotated[
    str | None, typer.Option(help="Workspace of every cuDNN plan, in place of cuDNN's own (see ULLAGE_CUDNN).")
]
Page = Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Placement = Annotated[
    str,
    typer.Option(help="Whose driver: linux, wsl, windows, linux-host. Up to torch 2.11 it decides what is reserved."),
]
Values = Annotated[
    str, typer.Option(help="What is read back from the card: auto, on, off (zero), all (everything is computed).")
]
Seed = Annotated[int, typer.Option(help="What values that nobody knows are drawn from.")]
Draws = Annotated[int, typer.Option(help="How many seeds to try where drawn values may decide.")]
Batches = Annotated[
    str | None, typer.Option(help="heaviest: go through an epoch's batches, run the heaviest, foresee the rest.")
]
Minutes = Annotated[float, typer.Option(help="The time for --batches, beside --seconds.")]
Routing = Annotated[
    str,
    typer.Option(
        help="Experts that drawn scores choose: auto (ranks: balanced), drawn, balanced, worst, or a skew such as 1.5."
    ),
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Make weights that are not here up from their configuration.")
]
Config = Annotated[Path | None, typer.Option(help="A folder with the config.json of such models.")]
MadeUpData = Annotated[
    str | None,
    typer.Option(help="Rows for a data set that is not here: text:length=2048,rows=64, chat, preference, image:224."),
]
Lengths = Annotated[
    Path | None, typer.Option(help="A file with the lengths of such rows: one a line, or LENGTH,COUNT.")
]
