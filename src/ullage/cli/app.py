"""The command `ullage` with its subcommands. Errors become messages and exit codes here."""

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from types import ModuleType
from typing import Annotated, Final, NoReturn, TextIO

import typer

import ullage
from ullage.base.errors import ExitCode, UllageError
from ullage.cli import advise, diff, doctor, explain, fit, gpus, predict, repro, run, tune, watch
from ullage.cli.command import Command, CommandGroup, LaunchCommand
from ullage.cli.flags import with_flags
from ullage.cli.interruption import told_in_one_sentence

app = typer.Typer(
    name="ullage",
    cls=CommandGroup,
    help="The GPU memory toolkit for PyTorch. Start with: ullage predict train.py --gpu 'RTX 4090'",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_WITH_COMMAND: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def _function_of(subcommand: ModuleType) -> Callable[..., None]:
    function: Callable[..., None] = vars(subcommand)[subcommand.__name__.rpartition(".")[2]]
    return function


for each in (predict, fit, advise):
    app.command(cls=LaunchCommand, context_settings=_WITH_COMMAND, epilog=each.EPILOG)(_function_of(each))
app.command(
    name="run",
    cls=Command,
    # Options before the user's command belong to ullage; everything after it belongs to the command.
    context_settings={**_WITH_COMMAND, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|LAUNCHER ARGS...",
    epilog=run.EPILOG,
)(run.run)
for each in (explain, tune, diff, repro, doctor, watch):
    app.command(cls=Command, epilog=each.EPILOG)(_function_of(each))
app.command(cls=Command)(gpus.gpus)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ullage {ullage.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Answer questions about the GPU memory of PyTorch programs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of ullage.

    If the reader of the output closes the pipe, as `head` does, end without an error message.
    """
    try:
        _run(arguments)
    except BrokenPipeError:
        _end_without_reader()
    except SystemExit as error:
        # typer and rich exit with 1 if the pipe is closed, which would mean "does not fit".
        if error.code == 1 and _has_lost_its_reader():
            _end_without_reader()
        raise


def _run(arguments: Sequence[str] | None) -> None:
    _prepare_streams()
    try:
        with told_in_one_sentence():
            app(args=list(arguments) if arguments is not None else None)
    except UllageError as error:
        from ullage.report.foreign_names import without_control_characters
        from ullage.report.terminal import ReportConsole

        ReportConsole(stderr=True, highlight=False).print("[bold red]error:[/] ", end="")
        text = with_flags(str(error), typer.main.get_command(app))
        sys.stderr.write(f"{without_control_characters(text)}\n")  # it may quote a file
        sys.exit(error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up(sys.stdout)
        sys.stderr.write(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else "") + "\n")
        sys.exit(ExitCode.WRONG_USAGE)
    except Exception:
        # Python's own exit code for an exception, 1, would mean "does not fit".
        sys.stderr.write(f"internal error of ullage; please report this:\n{traceback.format_exc()}")
        sys.exit(ExitCode.UNKNOWN)


def _prepare_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # The new stream takes the free number, so that none of our files gets it. A process that `ullage run`
            # starts finds
            # the stream closed.
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            setattr(sys, name, open(null, mode))  # noqa: SIM115  it lives as long as the process
        elif name != "stdin" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if name == "stderr" else "replace")


def _has_lost_its_reader() -> bool:
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            poll.register(stream.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _end_without_reader() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        _give_up(stream)
    sys.exit(128 + signal.SIGPIPE)


def _give_up(stream: TextIO) -> None:
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


if __name__ == "__main__":
    main()
