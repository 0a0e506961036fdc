"""The screen of `ullage watch` in a terminal, based on textual."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Static

from ullage.running.watch.draw import Display, Page, draw
from ullage.running.watch.view import View

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The environment variables from which textual reads the terminal's size. If they are exported, textual does not notice
# when the size changes.
_SIZES: Final = ("COLUMNS", "LINES")


def show(poll: Callable[[], View], *, seconds: float) -> int:
    """Show the screen until the user quits, and return an exit code.

    Args:
        poll: a function that collects the data; it is called in a separate thread.
        seconds: the time between two updates.
    """
    screen = LiveView(poll, seconds=seconds)
    before = {number: signal.getsignal(number) for number in _ENDING}
    for name in _SIZES:
        os.environ.pop(name, None)
    try:
        screen.run(mouse=False)  # the terminal's own text selection and copying stay available
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if screen.failure is not None:
        raise screen.failure
    if screen.ended_by is not None:
        os.kill(os.getpid(), screen.ended_by)
    return 0 if not screen.return_code else 4  # textual has already printed the error


class LiveView(App[None]):
    """The terminal application behind `ullage watch`. It is based on the Python package textual."""

    CSS = "Screen { background: ansi_default; } #all { width: 100%; height: 100%; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", priority=True),
        Binding("down,tab,j", "choose(1)", "next", priority=True),
        Binding("up,shift+tab,k", "choose(-1)", "previous", priority=True),
        Binding("pagedown,space", "move(1)", "more", priority=True),
        Binding("pageup", "move(-1)", "back", priority=True),
        Binding("c", "page('cards')", "cards"),
        Binding("question_mark,h", "page('help')", "help"),
        Binding("escape", "page('process')", "back"),
        Binding("o", "whole", "whole run"),
        Binding("p", "pause", "pause"),
    ]

    def __init__(self, poll: Callable[[], View], *, seconds: float) -> None:
        super().__init__(ansi_color=True)
        self.failure: Exception | None = None
        self.ended_by: signal.Signals | None = None
        self._poll = poll
        self._seconds = seconds
        self._latest = View(time=time.time(), subject="looking ...")
        self._wanted = Display(width=80, height=24)
        self._chosen_process: tuple[str, int] | None = None
        self._most_scroll = 0
        self._has_ended = threading.Event()

    def compose(self) -> ComposeResult:
        """Create the widget."""
        yield Static(id="all", markup=False)

    def on_mount(self) -> None:
        """Start polling and handling signals."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._end, number)
        threading.Thread(target=self._poll_periodically, daemon=True).start()

    def on_unmount(self) -> None:
        """Stop polling."""
        self._has_ended.set()

    def on_resize(self, event: Resize) -> None:
        """Draw the view again."""
        self._draw(width=event.size.width, height=event.size.height)

    def action_choose(self, by: int) -> None:
        """Select another process."""
        count = max(1, len(self._latest.processes))
        self._draw(chosen=(self._wanted.chosen + by) % count, page=Page.PROCESS, scroll=0)
        if self._latest.processes:
            chosen = self._latest.processes[self._wanted.chosen]
            self._chosen_process = (chosen.folder, chosen.pid)

    def action_move(self, by: int) -> None:
        """Scroll the lower part of the screen."""
        step = max(1, self._wanted.height // 3)
        self._draw(scroll=max(0, min(self._most_scroll, self._wanted.scroll + by * step)))

    def action_page(self, name: str) -> None:
        """Show the page with this name in the lower part of the screen.

        If the page is already shown, show the details of the selected process instead.
        """
        page = Page(name)
        self._draw(page=Page.PROCESS if self._wanted.page is page else page, scroll=0)

    def action_whole(self) -> None:
        """Switch the plot between the whole run and the latest training steps."""
        self._draw(is_whole=not self._wanted.is_whole)

    def action_pause(self) -> None:
        """Pause the display, or continue."""
        self._draw(is_paused=not self._wanted.is_paused)

    def _poll_periodically(self) -> None:
        try:
            while not self._has_ended.is_set():
                view = self._poll()
                if not self._has_ended.is_set():
                    self.call_from_thread(self._take, view)
                self._has_ended.wait(self._seconds)
        except Exception as failure:  # the command line reports it after the terminal is restored
            if not self._has_ended.is_set():
                self.failure = failure
                self.call_from_thread(self.exit)

    def _take(self, view: View) -> None:
        self._check_size()
        if self._wanted.is_paused:
            return
        self._latest = view
        keys = [(inside.folder, inside.pid) for inside in view.processes]
        if self._chosen_process in keys:  # the order changes as processes start and end
            self._wanted = replace(self._wanted, chosen=keys.index(self._chosen_process))
        elif keys:
            self._wanted = replace(self._wanted, chosen=min(self._wanted.chosen, len(keys) - 1))
            self._chosen_process = keys[self._wanted.chosen]
        self._draw()

    def _check_size(self) -> None:
        # the signal for a change of size is lost if it comes before textual handles signals
        with suppress(OSError):
            if tuple(os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)) != tuple(self.size):
                os.kill(os.getpid(), signal.SIGWINCH)

    def _draw(self, **changes: object) -> None:
        self._wanted = replace(self._wanted, **changes)  # type: ignore[arg-type]  # of whichever field
        picture = draw(self._latest, self._wanted)
        self._most_scroll = picture.most_scroll
        self._wanted = replace(self._wanted, scroll=min(self._wanted.scroll, picture.most_scroll))
        self.query_one("#all", Static).update(Text("\n", no_wrap=True).join(picture.lines))

    def _end(self, number: signal.Signals) -> None:
        self.ended_by = signal.Signals(number)
        self.exit()
