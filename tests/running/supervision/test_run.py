"""Rules of `ullage run` from outside: the command is the user's own, and what is left of it is worth reading."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ullage.running.run_files.folder import read_run
from ullage.running.run_files.live import LiveFileError, read_live

SCRIPTS = Path(__file__).parent / "scripts"
RUN = [sys.executable, "-m", "ullage", "run"]
SLOW = "ULLAGE_SLOW" in os.environ
_PATIENCE_SECONDS = 900  # how long a busy machine may take for what is otherwise there at once


def _run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )


def _script(folder: Path, code: str) -> Path:
    path = folder / "script.py"
    path.write_text(code)
    return path


# ---- the whole story


def test_the_story_of_a_run_that_ran_out_of_memory(tmp_path: Path) -> None:
    """Run, read why, do the first thing that is proved to help, run again: it comes to its end."""
    failed = _run("--gpu", "RTX 2080 Ti", "--folder", "first", SCRIPTS / "pieces.py", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.index("torch.OutOfMemoryError") < failed.stderr.index("FRAGMENTATION")
    assert "pieces.py:17" in failed.stderr
    [cure] = re.findall(r"^ *export PYTORCH_CUDA_ALLOC_CONF=(\S+)$", failed.stderr, re.MULTILINE)
    [evidence] = (tmp_path / "first").glob("oom-*")
    assert sorted(path.name for path in evidence.iterdir()) == [
        *("environment.json", "report.html", "report.txt", "snapshot.pickle")
    ]
    assert "FRAGMENTATION" in (evidence / "report.txt").read_text()
    surroundings = json.loads((evidence / "environment.json").read_bytes())
    assert (surroundings["is_in_backward"], surroundings["line"].endswith("pieces.py:14")) == (True, True)
    told = subprocess.run(
        [sys.executable, "-m", "ullage", "explain", "first", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    answer = json.loads(told.stdout)
    assert answer["cause"] == "fragmented"
    assert cure in [remedy["setting"] for remedy in answer["remedies"] if remedy["proved"] and remedy["fits"]]
    again = _run(
        "--gpu", "RTX 2080 Ti", "--folder", "second", SCRIPTS / "pieces.py", cwd=tmp_path, PYTORCH_CUDA_ALLOC_CONF=cure
    )
    assert (again.returncode, again.stdout) == (0, "done 60\n"), again.stderr
    assert "60 steps; 8.27 GiB of 10.76 GiB allocated at the peak (step 60, in backward)" in again.stderr
    assert not list((tmp_path / "second").glob("oom-*"))


# ---- the command is the user's own


def test_what_the_script_sees_is_its_own(tmp_path: Path) -> None:
    """Arguments, input, output, environment but for two variables, and its exit code; no folder is left."""
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.stdin.read(), __name__])); sys.exit(7)"
    script = _script(tmp_path, code)
    ended = subprocess.run(
        [*RUN, script, "--gpu", "x", "-m", "--", "--folder"], input="in", cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 7
    assert json.loads(ended.stdout) == [["--gpu", "x", "-m", "--", "--folder"], "in", "__main__"]
    assert ended.stderr == ""
    module = _run("-m", "script", "a", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (module.returncode, json.loads(module.stdout)[0]) == (7, ["a"])
    other = _run("sh", "-c", "exit 5", cwd=tmp_path)
    assert (other.returncode, other.stderr) == (5, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_it_ends_by_the_signal_that_ended_the_command(tmp_path: Path, number: signal.Signals) -> None:
    script = _script(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})")
    assert _run(script, cwd=tmp_path).returncode == -number


@pytest.mark.parametrize(
    "number",
    [
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
        *(signal.SIGXCPU, signal.SIGWINCH, signal.SIGRTMIN + 6),
    ],
)
def test_signals_are_handed_on_once(tmp_path: Path, number: int) -> None:
    """The script has a handler, and decides."""
    script = _script(
        tmp_path,
        "import signal, sys, time\n"
        "seen = []\n"
        f"signal.signal({int(number)}, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.3); print(len(seen)); sys.exit(3)",
    )
    process = subprocess.Popen([*RUN, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=900)[0] == "1\n"
    assert process.returncode == 3


@pytest.mark.parametrize("stopped_seconds", [0.1, 1.3, 2.1])
def test_it_goes_on_after_it_was_stopped(tmp_path: Path, stopped_seconds: float) -> None:
    """Slurm's suspend and debuggers send SIGSTOP, and later SIGCONT; a signal that comes afterwards is still heard."""
    script = _script(
        tmp_path,
        "import signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "print('heard', len(seen)); sys.exit(3)",
    )
    process = subprocess.Popen([*RUN, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(stopped_seconds)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=900)[0] == "heard 1\n"
    assert process.returncode == 3


def test_signals_are_handed_on_beside_threads_of_ours(tmp_path: Path) -> None:
    """Such as those of an endpoint: none of them takes a signal that is meant for the script."""
    script = _script(
        tmp_path,
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True); time.sleep(1.5); print('alive', flush=True); time.sleep(60)",
    )
    process = subprocess.Popen(
        [*RUN, "--prometheus", "0", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "alive\n"]
    process.terminate()
    process.communicate(timeout=900)
    assert process.returncode == 5


def test_it_stops_with_the_script_where_it_is_asked_to(tmp_path: Path) -> None:
    """By SIGTSTP, as Slurm's suspend begins; SIGCONT has both go on, and who waits for us sees us stop."""
    script = _script(
        tmp_path,
        "import signal, sys, time\n"
        "signal.signal(signal.SIGCONT, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)",
    )
    process = subprocess.Popen([*RUN, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    [command] = [one for one in psutil.Process(process.pid).children() if str(script) in one.cmdline()]
    assert command.status() == psutil.STATUS_STOPPED
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=900)
    assert process.returncode == 5


@pytest.mark.parametrize("before", ["", ":", ":/nowhere", "/nowhere::/nobody", "/nowhere:"])
def test_modules_are_found_where_python_finds_them(tmp_path: Path, before: str) -> None:
    """An empty entry of PYTHONPATH among others is the current folder."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "beside.py").touch()
    script = _script(tmp_path / "scripts", "import sys\ntry: import beside\nexcept ImportError: sys.exit(5)")
    plain = subprocess.run([sys.executable, script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": before}, check=False)
    assert _run(script, cwd=tmp_path, PYTHONPATH=before).returncode == plain.returncode


def test_when_it_is_killed_so_is_the_command(tmp_path: Path) -> None:
    """With all that it has started."""
    script = _script(
        tmp_path,
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(os.getpid(), child.pid, flush=True); time.sleep(600)",
    )
    process = subprocess.Popen([*RUN, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    until = time.monotonic() + _PATIENCE_SECONDS
    while any(map(_is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Terminal:
    """A shell-like parent with a terminal of its own, in which the command is the foreground's."""

    def __init__(self, command: list[str], cwd: Path) -> None:
        self.pid, self._end = pty.fork()
        if not self.pid:
            os.chdir(cwd)
            os.execv(command[0], command)
        self.text = ""

    def until(self, text: str, seconds: float = _PATIENCE_SECONDS) -> None:
        """Read until a text has come."""
        until = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < until, self.text
            if select.select([self._end], [], [], 0.1)[0]:
                self.text += os.read(self._end, 1 << 16).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until a text has come.

        Once is not enough for a script that is about to read its input: Python's input() looks for signals and then
        reads, and one that comes between the two is heard only after the line.
        """
        for _ in range(20):
            self.type("\x03")
            try:
                self.until(text, seconds=2)
            except AssertionError:
                continue
            return
        raise AssertionError(self.text)

    def close(self) -> None:
        os.close(self._end)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_and_input_in_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C reaches the script once, which may go on; it reads the terminal as it would."""
    script = _script(
        tmp_path,
        "import time\n"
        "print('name?', flush=True); name = input()\n"
        "for turn in range(2):\n"
        "    try:\n"
        "        print('waiting', turn, flush=True); time.sleep(60)\n"
        "    except KeyboardInterrupt: print('interrupted', name, flush=True)\n"
        "raise SystemExit(9)",
    )
    terminal = _Terminal([*RUN, str(script)], tmp_path)
    terminal.until("name?")
    terminal.type("tank\n")
    for turn in range(2):
        terminal.until(f"waiting {turn}")
        time.sleep(0.2)
        terminal.type("\x03")
    assert terminal.wait() == 9
    terminal.close()


def test_a_terminal_that_is_closed_ends_it(tmp_path: Path) -> None:
    """As it would end the script alone: by SIGHUP, and nothing hangs."""
    script = _script(tmp_path, "import time; print('here', flush=True); time.sleep(600)")
    terminal = _Terminal([*RUN, str(script)], tmp_path)
    terminal.until("here")
    terminal.close()
    assert terminal.wait() == -signal.SIGHUP


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "ullage run needs a script to run: ullage run train.py"),
        (["nowhere.py"], "the script nowhere.py does not exist"),
        (["no-such-launcher"], "no-such-launcher is neither a script"),
        (["-m"], "-m needs the name of a module"),
        (["--history", "often", "-m", "this"], "--history often is not a mode; expected one of auto, always, never"),
        (["--gpu", "GTX 1", "-m", "this"], "GTX 1"),
        (["--count", "2", "-m", "this"], "--count 2 is for emulated GPUs"),
        (["--history-budget", "some", "-m", "this"], "--history-budget"),
        (["--folder", ".", "-m", "this"], "--folder . exists and is not an empty folder"),
        (["--wrong", "x.py"], "--wrong is neither an option of ullage run"),
    ],
)
def test_wrong_words_are_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    """Exit code 2, before anything has run; nothing is left."""
    (tmp_path / "there").touch()
    ended = _run(*words, cwd=tmp_path)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert len(ended.stderr.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


# ---- evidence that stays


TRAINING = """
import sys, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
for step in range(10**9):
    model(torch.zeros(8, 256, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
    if step == 20: print("going", flush=True)
"""


def test_a_script_that_is_killed_leaves_its_samples(tmp_path: Path) -> None:
    """By SIGKILL, as the kernel does when the host's memory is short."""
    script = _script(tmp_path, TRAINING)
    process = subprocess.Popen(
        [*RUN, "--gpu", "T4", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    [live] = tmp_path.glob("ullage-runs/*/*.live")
    until = time.monotonic() + _PATIENCE_SECONDS
    while read_live(live).recent[-1].step <= 20:
        assert time.monotonic() < until, "no sample is written"
        time.sleep(0.05)
    os.kill(read_live(live).facts["pid"], signal.SIGKILL)
    error = process.communicate(timeout=900)[1]
    assert process.returncode == -signal.SIGKILL
    assert re.search(r"ullage: [\d,]+ steps; ", error)
    assert read_run(live.parent).processes[0].facts.steps > 20


HOST = """
import torch
torch.zeros(1, device="cuda")
torch.empty(1 << 43, dtype=torch.uint8)
"""


def test_it_says_that_host_memory_ended_the_script(tmp_path: Path) -> None:
    """In the words of `ullage explain`: for an error of PyTorch's CPU allocator, and for a kill without any error."""
    ended = _run("--gpu", "T4", _script(tmp_path, HOST), cwd=tmp_path)
    assert ended.returncode == 1
    assert "ullage: Host memory ran out, not GPU memory: 8.00 TiB were requested." in ended.stderr
    assert "ullage: try first: " in ended.stderr
    used = "import os, torch; torch.zeros(1, device='cuda'); "
    for code in ("os.kill(os.getpid(), 9)", "raise SystemExit(137)"):
        ended = _run("--gpu", "T4", _script(tmp_path, used + code), cwd=tmp_path)
        assert "ullage: The process was killed from outside" in ended.stderr
    for code in (used + "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"):
        ended = _run("--gpu", "T4", _script(tmp_path, code), cwd=tmp_path)
        assert "host memory" not in ended.stderr.lower(), "another ending, or a script without torch"


@pytest.mark.parametrize("ending", ["kill(os.getpid(), 9)", "_exit(0)", "execv('/bin/true', ['true'])", "abort()"])
def test_the_summary_of_a_process_that_left_at_once_is_of_its_samples(tmp_path: Path, ending: str) -> None:
    """Its last words are of its first step, if there are any: the samples go to the end."""
    training = TRAINING.replace("10**9", "30").replace("import sys", "import os, sys")
    ended = _run("--gpu", "T4", "--folder", "kept", _script(tmp_path, f"{training}os.{ending}\n"), cwd=tmp_path)
    assert "ullage: 30 steps; " in ended.stderr
    [process] = read_run(tmp_path / "kept").processes
    assert (process.facts.steps, process.live.recent[-1].step) == (30, 30)
    assert process.peak_bytes == max(sample.peak_bytes for sample in process.live.recent) > 0


def _ranks(tmp_path: Path, count: int) -> None:
    script = _script(
        tmp_path,
        "import os, torch\n"
        "rank = int(os.environ['RANK']); torch.cuda.set_device(rank)\n"
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)\n"
        "kept = torch.empty((1 + rank) << 28, device='cuda', dtype=torch.uint8)\n"
        "for step in range(5):\n"
        "    model(torch.zeros(8, 256, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "torch.empty(1 << 40, device='cuda', dtype=torch.uint8)\n",
    )
    words = ["torchrun", "--standalone", "--nproc-per-node", count, script]
    launcher = str(Path(sys.executable).parent)
    ended = _run(
        *("--gpu", "T4", "--count", count, "--folder", "runs"), *words,
        cwd=tmp_path, PATH=f"{launcher}:{os.environ['PATH']}", TMPDIR=str(tmp_path),
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    run = read_run(tmp_path / "runs")
    assert "NOT ENOUGH GPU MEMORY" in ended.stderr
    assert 1 <= len(run.evidence) <= count
    assert all(one.snapshot is not None for one in run.evidence)
    if len(run.processes) == count:
        assert [process.facts.rank for process in run.processes] == list(range(count))
        assert f"rank {count - 1} uses the most memory" in ended.stderr


def test_two_ranks_that_die_at_once(tmp_path: Path) -> None:
    """Each has left its own file and evidence; the verdict says which rank is different."""
    _ranks(tmp_path, 2)


@pytest.mark.skipif(not SLOW, reason="eight processes that import torch: ULLAGE_SLOW=1")
def test_eight_ranks_that_die_at_once(tmp_path: Path) -> None:
    _ranks(tmp_path, 8)


def test_a_full_disk_changes_nothing_for_the_script(tmp_path: Path) -> None:
    """No file can be written; the script's own error and exit code are what they are."""
    code = "import sys, torch\ntorch.empty(1 << 40, device='cuda', dtype=torch.uint8)"
    script = _script(tmp_path, code)
    limited = f"ulimit -f 0; exec {sys.executable} -m ullage run --gpu T4 {script}"
    ended = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 GiB" in ended.stderr
    assert "the script continues without it" in ended.stderr


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """By `ullage explain`, with exit code 2."""
    (tmp_path / "some.live").write_bytes(b"no")
    ended = subprocess.run(
        [sys.executable, "-m", "ullage", "explain", str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 2
    assert "expected a folder that `ullage run` has written" in " ".join(ended.stderr.split())
    with pytest.raises(LiveFileError):
        read_live(tmp_path / "some.live")


def test_what_the_script_handles_is_one_line(tmp_path: Path) -> None:
    """The verdict is for who asks; the script has gone on."""
    script = _script(
        tmp_path,
        "import torch\n"
        "for size in (1 << 40, 1 << 30):\n"
        "    try: torch.empty(size, device='cuda', dtype=torch.uint8)\n"
        "    except torch.OutOfMemoryError: print('smaller')\n",
    )
    ended = _run("--gpu", "T4", script, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "smaller\n")
    said = "memory ran out 1 time, and the script handled it; to see why: ullage explain ullage-runs/script-"
    assert said in ended.stderr
    assert "NOT ENOUGH GPU MEMORY" not in ended.stderr
    assert "memory growth is unknown: no optimizer has stepped" in ended.stderr


def test_a_script_that_ends_before_it_uses_a_card_leaves_nothing(tmp_path: Path) -> None:
    script = _script(tmp_path, "import argparse; argparse.ArgumentParser().parse_args(['--unknown'])")
    ended = _run(script, cwd=tmp_path)
    assert ended.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_ctrl_c_ends_a_loop_around_it(tmp_path: Path) -> None:
    """As it ends a loop around python: the shell that runs the loop gets the signal too."""
    script = _script(tmp_path, "import time; print('waiting', flush=True); time.sleep(60)")
    loop = f"for turn in 1 2 3; do {shlex.join([*RUN, str(script)])}; echo next $turn; done"
    terminal = _Terminal(["/bin/bash", "-c", loop], tmp_path)
    terminal.until("waiting")
    time.sleep(0.2)
    terminal.type("\x03")
    assert terminal.wait() == -signal.SIGINT
    assert "next" not in terminal.text
    terminal.close()


class _Shell(_Terminal):
    """An interactive bash, as people have it: with job control."""

    def __init__(self, cwd: Path) -> None:
        super().__init__(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], cwd)
        self._questions = 0
        # noflsh: else what is typed right after Ctrl-Z may be thrown away, although the shell is back already.
        self.ask("PS1='> '; stty -echo noflsh; set -o pipefail")

    def ask(self, command: str) -> str:
        """Have the shell do something, and return what is on the terminal when it is back."""
        self._questions += 1
        self.text = ""
        self.type(f"{command}; echo back$((0)) {self._questions}\n")
        self.until(f"back0 {self._questions}\r\n")
        return self.text

    def until_state(self, pid: int, states: str) -> None:
        """Wait until a process runs, sleeps (RS), or is stopped (T)."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in states:
            assert time.monotonic() < until, self.text
            time.sleep(0.02)

    def stop(self) -> None:
        """Press Ctrl-Z, and wait until the shell is back."""
        self.text = ""
        self.type("\x1a")
        self.until("Stopped")
        assert "Stopped" in self.ask("jobs")

    def end(self) -> None:
        """End the shell and its jobs."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()
        self.wait()


ASKING = """
import os, pathlib, sys
pathlib.Path("pid").write_text(str(os.getpid()))
for number in range(100):
    print("asking", number, flush=True)
    word = input()
    print("got", word, flush=True)
    if word == "end": sys.exit(7)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[_Shell]:
    shell = _Shell(tmp_path)
    yield shell
    shell.end()


def _begin_asking(shell: _Shell, tmp_path: Path, behind: str = "") -> int:
    """Start a script that reads the terminal; return its process."""
    shell.type(f"{shlex.join([*RUN, str(_script(tmp_path, ASKING))])}{behind}\n")
    shell.until("asking 0\r\n" if "&" not in behind else "[1]")
    until = time.monotonic() + _PATIENCE_SECONDS
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until, shell.text
        time.sleep(0.02)
    return int((tmp_path / "pid").read_text())


@pytest.mark.parametrize("behind", ["", " | cat"])
def test_ctrl_z_and_fg(tmp_path: Path, shell: _Shell, behind: str) -> None:
    """The shell is back at once, as often as wanted; brought back, the script reads on and ends as itself."""
    pid = _begin_asking(shell, tmp_path, behind)
    for turn in range(2):
        shell.stop()
        shell.until_state(pid, "T")
        shell.type("fg\n")
        shell.until_state(pid, "RS")
        shell.type(f"word{turn}\n")
        shell.until(f"got word{turn}\r\n")
    shell.type("end\n")
    shell.until("got end")
    assert "code 7" in shell.ask("echo code $?")


def test_what_is_behind_it_in_a_pipeline_may_read_the_terminal(tmp_path: Path, shell: _Shell) -> None:
    """As a pager does for its keys; and Ctrl-C reaches all of the pipeline, each once."""
    (tmp_path / "counts.py").write_text(
        "import signal, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "open('ready', 'w').close()\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.3); open('times', 'w').write(str(len(seen))); print('bye')"
    )
    pager = "sh -c 'trap : INT; read word </dev/tty; echo heard $word; cat'"
    shell.type(f"{shlex.join([*RUN, 'counts.py'])} | {pager}\n")
    until = time.monotonic() + _PATIENCE_SECONDS
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < until, shell.text
        time.sleep(0.02)
    shell.type("more\n")
    shell.until("heard more\r\n")
    shell.type("\x03")
    shell.until("bye")
    shell.ask("true")
    assert (tmp_path / "times").read_text() == "1"


def test_bg_goes_on_behind_and_stops_where_it_would_read(tmp_path: Path, shell: _Shell) -> None:
    """As without us: what reads the terminal from behind is stopped, until it is brought to the front."""
    code = "import os, time; print('here', os.getpid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    (tmp_path / "ready.py").write_text(code + "open('went', 'w').close(); print('got', input(), flush=True)")
    shell.type(f"{shlex.join([*RUN, 'ready.py'])}\n")
    shell.until("\r\n")
    shell.until("here")
    shell.stop()
    shell.ask("bg")
    assert "Running" in shell.ask("jobs")
    (tmp_path / "go").touch()
    until = time.monotonic() + _PATIENCE_SECONDS
    while "Stopped" not in shell.ask("jobs"):
        assert time.monotonic() < until, shell.text
    assert (tmp_path / "went").exists()
    shell.type("fg\n")
    shell.until("ready.py\r\n")
    shell.type("word\n")
    shell.until("got word\r\n")
    assert "code 0" in shell.ask("echo code $?")


def test_what_was_begun_behind_can_be_brought_to_the_front(tmp_path: Path, shell: _Shell) -> None:
    """Stopped where it reads; at the front it reads, and Ctrl-C ends it and not the shell."""
    pid = _begin_asking(shell, tmp_path, " &")
    shell.until_state(pid, "T")
    until = time.monotonic() + _PATIENCE_SECONDS
    while "Stopped" not in shell.ask("jobs"):
        assert time.monotonic() < until, shell.text
    shell.type("fg\n")
    shell.until_state(pid, "RS")
    shell.type("word\n")
    shell.until("asking 1\r\n")
    shell.interrupt_until("KeyboardInterrupt\r\n\r\n> ")
    assert "code 130" in shell.ask("echo code $?")


def test_a_script_may_read_the_terminal_beside_its_input(tmp_path: Path) -> None:
    """As for a password: its input comes from elsewhere."""
    script = _script(tmp_path, "print('name?', flush=True); print('hello', open('/dev/tty').readline())")
    terminal = _Terminal(["/bin/sh", "-c", f"exec {shlex.join([*RUN, str(script)])} </dev/null"], tmp_path)
    terminal.until("name?")
    terminal.type("tank\n")
    terminal.until("hello tank")
    assert terminal.wait() == 0
    terminal.close()


def test_what_the_command_leaves_behind_lives_on(tmp_path: Path) -> None:
    """As it would without us."""
    ended = _run("bash", "-c", "sleep 60 >/dev/null 2>&1 & echo $!", cwd=tmp_path)
    pid = int(ended.stdout)
    assert _is_alive(pid)
    os.kill(pid, signal.SIGKILL)
