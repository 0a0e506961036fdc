"""Values of options that several subcommands have, and their help texts."""

from typing import Annotated, Final

import typer

WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions are cuDNN's own, where it is beside torch or where ULLAGE_CUDNN names it, "
    "else estimated. [bold]ullage doctor --gpu T4[/] says which."
)
PlacementOption = Annotated[
    str,
    typer.Option(help="Whose driver: linux, wsl, windows, linux-host. Up to torch 2.11 it decides what is reserved."),
]
