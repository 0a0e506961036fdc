"""The screen on a real terminal, tmux's: what it shows at several sizes, its keys, and how it leaves the terminal."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from . import made

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: no terminal to draw on")
_SECONDS = 900


class Terminal:
    """A shell in a tmux server of its own. It exports its first size, as shells may; pytest-xdist's workers do too."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        shell = "env PS1='ready> ' COLUMNS=80 LINES=24 sh"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", shell)
        self.expect("ready>")

    def text(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", *keys)

    def run(self, *arguments: str) -> None:
        """Run `ullage watch`, and show its exit code."""
        command = shlex.join([sys.executable, "-m", "ullage", "watch", *arguments])
        self.keys("-l", f"clear; {command}; echo ended with $?")
        self.keys("Enter")

    def resize(self, width: int, height: int) -> None:
        """Make the terminal larger or smaller."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def expect(self, *texts: str, absent: str | None = None) -> str:
        """Wait until all texts are on the screen and another is not, and return it."""
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            shown = self.text()
            if all(text in shown for text in texts) and (absent is None or absent not in shown):
                return shown
            time.sleep(0.05)
        raise AssertionError(f"expected {texts} and not {absent!r} on\n{self.text()}")

    def expect_rows(self, count: int) -> None:
        """Wait until what is drawn has as many rows as the terminal, the footer last."""
        until = time.monotonic() + _SECONDS
        while [row for row, line in enumerate(self.text().split("\n"), 1) if line[:6] == "q quit"] != [count]:
            assert time.monotonic() < until, self.text()
            time.sleep(0.05)

    def is_as_before(self) -> None:
        """The shell has its screen, echo and cursor back: what is typed is seen, and keys are no codes."""
        self.keys("-l", "clear; stty -a | tr ';' '\\n' | grep -cw -e '-echo' -e '-icanon' -e '-isig'; echo typed")
        self.keys("Enter")
        self.expect("0\ntyped\nready>")
        flags = self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}").split()
        assert flags == ["0", "1", "0"]

    def close(self) -> None:
        """End the terminal with all that runs in it."""
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        environment = {name: text for name, text in os.environ.items() if name not in ("TMUX", "ULLAGE_RECORDING")}
        command = ["tmux", "-u", "-S", self._socket, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_SECONDS)
        return done.stdout


def watching(folder: Path) -> list[int]:
    """The processes that run `ullage watch` of a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().endswith(f"\0watch\0{folder}\0".encode()):
                found.append(int(entry.name))
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run of two processes."""
    folder = tmp_path / "run"
    folder.mkdir()
    processes = [made.start(folder, rank=0, until="ended"), made.start(folder, rank=1)]
    yield folder
    for process in processes:
        made.end(process)


def test_the_screen_shows_everything_at_three_sizes_and_follows_its_keys(terminal: Terminal, run: Path) -> None:
    """80x24, 120x40 and 60x20: card, process, numbers, picture, footer; every key does what the footer says."""
    terminal.run(str(run), "--seconds", "0.1")
    for width, height in ((80, 24), (120, 40), (60, 20)):
        terminal.resize(width, height)
        terminal.expect_rows(height)
        shown = terminal.expect(
            "Tesla T4", "rank 0 of 4", "allocated 4.00 GiB", "cached 8.00 GiB", "headroom 2.71 GiB", "retries 0",
            "parameters", "the rest", "15.00 GiB ▔▔▔", "█", "q quit",
        )  # fmt: skip
        lines = shown.rstrip("\n").split("\n")
        assert lines[-1].startswith("q quit")
        assert any(len(line) > width - 12 for line in lines)
    first = terminal.expect("rank 0 of 4")
    terminal.expect("rank 0 of 4", absent=next(line for line in first.split("\n") if line.startswith("process")))
    terminal.keys("Down")
    terminal.expect("rank 1 of 4")
    terminal.keys("Tab")
    terminal.expect("rank 0 of 4")
    terminal.keys("c")
    terminal.expect("24.59 GiB of 15.00 GiB used", "watched", absent="rank 0 of 4")
    terminal.keys("?")
    terminal.expect("choose a process", "bytes that tensors use now")
    terminal.keys("Escape")
    terminal.expect("rank 0 of 4")
    terminal.keys("o")
    terminal.expect("rank 0 of 4", "step 1 ")
    terminal.keys("p")
    paused = terminal.expect("paused at")
    time.sleep(0.5)
    assert terminal.text() == paused
    terminal.keys("p")
    terminal.expect("rank 0 of 4", absent="paused at")
    terminal.resize(60, 14)
    before = terminal.expect("PgDn")
    terminal.keys("PageDown")
    assert terminal.expect("PgUp") != before
    terminal.keys("q")
    terminal.expect("ended with 0")
    terminal.is_as_before()


def test_the_terminal_is_as_before(terminal: Terminal, run: Path) -> None:
    """After Ctrl-C and after a signal that ends it: no alternate screen, the cursor back, echo on."""
    terminal.run(str(run))
    terminal.expect("rank 0 of 4")
    terminal.keys("C-c")
    terminal.expect("ended with 0")
    terminal.is_as_before()
    terminal.run(str(run))
    terminal.expect("rank 0 of 4")
    [pid] = watching(run)
    os.kill(pid, signal.SIGTERM)
    terminal.expect("ended with 143")
    terminal.is_as_before()


def test_a_terminal_that_is_closed_ends_it(run: Path, tmp_path: Path) -> None:
    """Nothing of it goes on when its window is gone."""
    shell = Terminal(tmp_path)
    shell.run(str(run))
    shell.expect("rank 0 of 4")
    assert len(watching(run)) == 1
    shell.close()
    until = time.monotonic() + _SECONDS
    while watching(run):
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.05)


def test_the_end_of_a_run_stays_on_the_screen(terminal: Terminal, tmp_path: Path) -> None:
    """How it ended, and what to do with what it left."""
    folder = tmp_path / "run"
    folder.mkdir()
    process = made.start(folder, until="out of memory")
    terminal.run(str(folder), "--seconds", "0.1")
    terminal.expect("runs")
    made.end(process)
    shown = terminal.expect("all ended", "out of memory", "ullage explain")
    assert f"oom-{process.pid}-1" in shown.replace("\n", "")
    terminal.keys("q")
    terminal.expect("ended with 0")


def test_without_textual_lines_follow_and_say_how_to_get_the_screen(terminal: Terminal, run: Path) -> None:
    code = "import sys; sys.modules['textual'] = None; from ullage.cli.app import main; main()"
    terminal.keys("-l", shlex.join([sys.executable, "-c", code, "watch", str(run)]))
    terminal.keys("Enter")
    shown = terminal.expect("pip install", "runs, step")
    assert "pip install 'ullage[watch]'" in shown.replace("\n", "")
    terminal.keys("C-c")
    terminal.is_as_before()
