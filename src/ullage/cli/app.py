"""`ullage`: the commands, and the one place where errors become text and exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

import ullage
from ullage._errors import UllageError
from ullage.cli import gpus, predict

app = typer.Typer(
    name="ullage",
    help="The GPU-memory toolkit for PyTorch. Start with: ullage predict train.py --gpu 'RTX 4090'",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command(
    name="predict",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=predict.EPILOG,
)(predict.predict)
app.command(name="gpus")(gpus.gpus)


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        typer.echo(f"ullage {ullage.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)] = False,  # noqa: FBT002
) -> None:
    """Answer what PyTorch users ask about GPU memory."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error that ullage raises on purpose ends here, as one sentence and an exit code."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except UllageError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] ", end="")
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was left behind\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone
        sys.exit(141)
    except OSError as error:
        sys.stderr.write(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else "") + "\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
