"""`ullage watch`: what is happening now on the cards, and inside the runs?"""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage.cli.exit_codes import exit_codes

if TYPE_CHECKING:
    from ullage.running.watch.plain import JsonLines, PlainText
    from ullage.running.watch.view import View

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage watch (all cards, and everything that `ullage run` has started; q quits, ? explains)\n\n"
    "ullage watch 4242 (one process: `ullage run`, one that it has started, or any other)\n\n"
    "ullage watch RUN_FOLDER (a run, after its end too)\n\n"
    "ullage watch --json | jq .processes (one JSON object a second; docs/watch.md has its fields)\n\n"
    f"{exit_codes('watch')}"
)


def watch(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|FOLDER]",
            show_default=False,
            help="A process, or the folder of a run. By default everything on this machine.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Sample once, print lines, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a second, and nothing else.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Time between two samples.")] = 1.0,
) -> None:
    """Show the cards, who is on them, and the inside of runs while they run.

    On a terminal it is a screen with keys; elsewhere a line a second for each card and process, until those have ended.
    The watched processes do not notice it.
    """
    from ullage.running.watch.plain import JsonLines, PlainText
    from ullage.running.watch.source import ViewSource, follow
    from ullage.running.watch.target import target_of

    with ViewSource(target_of(what)) as source:
        if not once and not as_json and _has_terminal():
            if importlib.util.find_spec("textual") is not None:
                from ullage.running.watch.screen import show

                raise typer.Exit(show(source.poll, seconds=seconds))
            sys.stderr.write("ullage: the screen needs textual; plain lines follow (pip install 'ullage[watch]')\n")
        looks = (source.poll() for _ in range(1)) if once else follow(source.poll, seconds=seconds)
        with _ended_by_interrupt():
            _print(looks, JsonLines() if as_json else PlainText())


def _print(views: "Iterable[View]", lines: "PlainText | JsonLines") -> None:
    for view in views:
        sys.stdout.write("".join(f"{line}\n" for line in lines.lines_of(view)))
        sys.stdout.flush()


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Make Ctrl-C an ordinary end, like q on the screen."""
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
    """Return whether a screen can be drawn and keys can be read."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
