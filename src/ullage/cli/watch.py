"""The command `ullage watch`: show the memory of GPUs and of running processes live."""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage.cli.command import epilog_of
from ullage.cli.exit_codes import exit_codes

if TYPE_CHECKING:
    from ullage.running.watch.plain import JsonLines, PlainText
    from ullage.running.watch.view import View

EPILOG: Final = epilog_of(
    "ullage watch",
    "ullage watch --json | jq .processes",
    exit_codes("watch"),
    page="watch.md",
)


def watch(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|FOLDER]",
            show_default=False,
            help="Process ID, or the folder of a run. By default, all GPUs and processes of this machine.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take one sample, print it, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON, one object per second.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Time between two samples, in seconds.")] = 1.0,
) -> None:
    """Show how much memory each GPU and each process uses now, and what happens inside recorded runs.

    On a terminal, `ullage watch` opens a screen with key bindings. Elsewhere, it prints one line per second for each
    GPU and process, until those processes have ended. The watched processes are not affected.
    """
    from ullage.running.watch.plain import JsonLines, PlainText
    from ullage.running.watch.source import ViewSource, follow
    from ullage.running.watch.target import target_of

    with ViewSource(target_of(what)) as source:
        if not once and not as_json and _has_terminal():
            if importlib.util.find_spec("textual") is not None:
                from ullage.running.watch.screen import show

                raise typer.Exit(show(source.poll, seconds=seconds))
            sys.stderr.write(
                "ullage: the screen needs textual; printing plain lines instead (pip install 'ullage[watch]')\n"
            )
        looks = (source.poll() for _ in range(1)) if once else follow(source.poll, seconds=seconds)
        with _ended_by_interrupt():
            _print(looks, JsonLines() if as_json else PlainText())


def _print(views: "Iterable[View]", lines: "PlainText | JsonLines") -> None:
    for view in views:
        sys.stdout.write("".join(f"{line}\n" for line in lines.lines_of(view)))
        sys.stdout.flush()


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
