"""What is found of real processes: by their environment and by their files, while they run and afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ullage.base.errors import UsageError
from ullage.base.units import GIB, MIB
from ullage.running.diagnosis.facts import CardFacts as DriverCard
from ullage.running.diagnosis.facts import CardProcess
from ullage.running.run_files.live import LiveWriter
from ullage.running.watch.draw import Display, Page, draw
from ullage.running.watch.plain import PlainText
from ullage.running.watch.source import ViewSource, notes_of, sees_host_processes
from ullage.running.watch.target import target_of
from ullage.running.watch.view import View

from . import made

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes of a run in `tmp_path`, and end them."""
    processes: list[subprocess.Popen[str]] = []

    def run(**options: Any) -> "subprocess.Popen[str]":
        processes.append(made.start(tmp_path, **options))
        return processes[-1]

    yield run
    for process in processes:
        made.end(process)


def look(what: str | Path | None) -> View:
    with ViewSource(target_of(None if what is None else str(what))) as source:
        return source.poll()


def watch(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `ullage watch` without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ullage", "watch", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


# ---- which processes


def test_a_run_is_found_by_its_process_its_parent_and_its_folder(start: Start, tmp_path: Path) -> None:
    """The process's own number, that of what started it, the folder, and nothing at all lead to the same process."""
    process = start(rank=1)
    for what in (process.pid, os.getpid(), tmp_path, None):
        view = look(what)
        [inside] = [one for one in view.processes if one.folder == str(tmp_path)]
        assert (inside.pid, inside.rank, inside.world_size) == (process.pid, 1, 4)
        assert (inside.state, inside.is_alive, view.is_over) == ("runs", True, False)
    assert look(process.pid).subject == f"process {process.pid} (python) of run {tmp_path.name}"
    assert tmp_path.name in look(os.getpid()).subject.partition("which runs")[2]


def test_the_inside_is_what_the_file_says(start: Start, tmp_path: Path) -> None:
    """Sums hold: cached is the difference, roles with the rest are what is allocated, headroom is less the others."""
    start()
    [inside] = look(tmp_path).processes
    [device] = inside.devices
    assert (device.allocated_bytes, device.reserved_bytes, device.cached_bytes) == (4 * GIB, 12 * GIB, 8 * GIB)
    assert device.headroom_bytes == made.TOTAL - 12 * GIB - 300 * MIB
    assert sum(size for _, size in inside.roles) == device.allocated_bytes
    assert (device.peak_bytes, device.peak_step, device.peak_line) == (11 * GIB, 9, "train.py:33")
    assert device.peaks[:78] == tuple(made.sample(step).peak_bytes for step in range(1, 79))
    assert inside.recording == "on since step 40: memory is short (1000 entries, at most 64.0 MiB, 1.2% slower)"


def test_an_emulated_card_comes_from_the_processes_that_are_on_it(start: Start, tmp_path: Path) -> None:
    """Each process counts alone there: the card's row is their sum, and says that it is emulated."""
    first, second = start(rank=0), start(rank=1)
    [card] = look(tmp_path).cards
    assert (card.name, card.is_emulated, card.total_bytes) == ("Tesla T4", True, made.TOTAL)
    assert {one.pid for one in card.holders} == {first.pid, second.pid}
    assert card.used_bytes == 2 * (12 * GIB + 300 * MIB)
    assert any("its own emulated GPU" in note for note in look(tmp_path).notes)


def test_a_process_that_was_killed_is_gone_and_one_that_ended_says_how(start: Start, tmp_path: Path) -> None:
    killed, ended, full = start(), start(until="ended"), start(until="out of memory")
    killed.kill()
    for one in (killed, ended, full):
        made.end(one)
    view = look(tmp_path)
    states = {inside.pid: (inside.state, inside.is_alive) for inside in view.processes}
    assert states == {killed.pid: ("gone", False), ended.pid: ("ended", False), full.pid: ("out of memory", False)}
    assert view.is_over
    [failed] = [inside for inside in view.processes if inside.ooms]
    assert (failed.pid, failed.evidence) == (full.pid, (str(tmp_path / f"oom-{full.pid}-1"),))
    assert [card.used_bytes for card in view.cards] == [0]


def test_a_source_keeps_what_has_ended_in_sight(start: Start) -> None:
    """A run whose last process has gone leads to nothing in /proc; who watched it still reads how it ended."""
    process = start(until="ended")
    with ViewSource(target_of(str(process.pid))) as source:
        assert not source.poll().is_over
        made.end(process)
        view = source.poll()
    assert view.is_over
    assert [inside.state for inside in view.processes] == ["ended"]


def test_a_number_that_another_process_has_by_now_is_not_the_one_that_wrote(tmp_path: Path) -> None:
    """This process began after that file was written: its number is the same, the process is not."""
    made.write(tmp_path / "process-1.live", made.facts(started=time.time() - 1e6), [made.sample(1)])
    assert [inside.state for inside in look(tmp_path).processes] == ["gone"]


def test_a_process_of_another_machine_is_alive_while_it_writes(tmp_path: Path) -> None:
    """Its number means nothing here; a folder may be on a shared disk."""
    other = {"host": "another-machine", "pid": 1}
    made.write(tmp_path / "process-1.live", made.facts(**other), [made.sample(1)])
    old = {"started": 1.7e9, "told": 1.7e9}
    made.write(tmp_path / "process-2.live", made.facts(**other | old | {"pid": 2}), [made.sample(1, time=1.7e9)])
    assert {one.pid: one.state for one in look(tmp_path).processes} == {1: "runs", 2: "gone"}


def test_a_file_that_tells_nothing_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    """Killed before it told its facts; a broken file beside it; and names that would steer the terminal."""
    made.write(tmp_path / "rank0-77.live", made.facts(), []).write_bytes(
        made.write(
            tmp_path / "empty.live", made.facts(pid=0, cards=(), peaks=(), roles={}, arming=None), []
        ).read_bytes()
    )
    (tmp_path / "empty.live").write_bytes(b"something else")
    named = made.facts(pid=5, command=("train.py", "\x1b[2J\n\x07"), growth=("a\x1b]0;b\x07",))
    made.write(tmp_path / "process-5.live", named, [])
    first, second = sorted(look(tmp_path).processes, key=lambda one: one.pid)
    assert (second.pid, second.devices) == (77, ())
    assert not set(first.command + first.growth[0]) & {"\x1b", "\x07", "\n"}


def test_a_run_that_has_nothing_to_tell_takes_its_files_away_and_has_ended(start: Start, tmp_path: Path) -> None:
    """Who watched still reads its last numbers, and that it ended rather than was killed."""
    process = start()
    with ViewSource(target_of(str(tmp_path))) as source:
        source.poll()
        made.end(process)
        (tmp_path / f"process-{process.pid}.live").unlink()
        view = source.poll()
    assert view.is_over
    assert [(inside.state, len(inside.devices)) for inside in view.processes] == [("ended", 1)]


def test_a_long_step_has_one_peak_and_no_step_has_samples(tmp_path: Path) -> None:
    """Samples within a step bear the number of the one before; a script without steps shows one a second."""
    samples = [(1, 5), (1, 9), (1, 7), (2, 6), (3, 4)]
    made.write(
        tmp_path / "process-1.live", made.facts(), [made.sample(step, peak_bytes=peak) for step, peak in samples]
    )
    [inside] = look(tmp_path).processes
    assert (inside.devices[0].peak_steps, inside.devices[0].peaks) == ((1, 2, 3), (5, 9, 4))
    made.write(tmp_path / "process-2.live", made.facts(), [made.sample(0, peak_bytes=peak) for peak in (5, 9)])
    [other] = [one for one in look(tmp_path).processes if one.devices[0].peaks == (5, 9)]
    assert other.devices[0].peak_steps == (0, 0)


def test_facts_of_other_types_do_not_end_the_view(tmp_path: Path) -> None:
    """A file from somebody else is data: what is no fact in it is left out, and it can be drawn."""
    writer = LiveWriter(tmp_path / "process-2.live")
    writer.add(made.sample(1))
    wrong = {"steps": "many", "state": ["runs"], "rank": {}, "cards": [{"index": "0"}, 7], "told": "now"}
    writer.write_facts(made.facts(pid=2).to_json() | wrong)
    view = look(tmp_path)
    assert [(one.pid, one.steps, one.rank) for one in view.processes] == [(2, 1, None)]
    for page in Page:
        assert len(draw(view, Display(width=80, height=24, page=page)).lines) == 24


def test_several_devices_are_told_apart(tmp_path: Path) -> None:
    told = made.facts(cards=(made.card(0), made.card(1, limit_bytes=8 * GIB)))
    samples = [made.sample(step, device=step % 2, reserved_bytes=(step % 2 + 1) * GIB) for step in range(10)]
    made.write(tmp_path / "process-1.live", told, samples)
    [inside] = look(tmp_path).processes
    assert [(one.index, one.reserved_bytes, one.limit_bytes) for one in inside.devices] == [
        (0, GIB, 15 * GIB), (1, 2 * GIB, 8 * GIB)]  # fmt: skip


# ---- what is asked for


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    for what, why in (
        ("4194999", "process 4194999 does not exist"),
        (str(tmp_path), "has no file of a run"),
        (str(tmp_path / "absent"), "neither a process id nor a folder"),
    ):
        with pytest.raises(UsageError, match=why):
            target_of(what)
    done = watch("4194999")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_process_that_is_no_run_is_told_from_outside() -> None:
    """What it is, and why its inside is not seen."""
    with subprocess.Popen(["sleep", "30"]) as other:
        view = look(other.pid)
        assert view.subject == f"process {other.pid} (sleep)"
        assert any("was not started by `ullage run`" in note for note in view.notes)
        assert not view.processes
        other.kill()


# ---- what cannot be seen


def test_a_container_wsl_and_no_driver_each_have_their_sentence(tmp_path: Path) -> None:
    (tmp_path / "proc/2").mkdir(parents=True)
    host = tmp_path / "proc/2/comm"
    silent = CardProcess(pid=1, name="python", used_bytes=None)
    card = DriverCard(index=0, name="T4", uuid="", total_bytes=1, used_bytes=1, processes=(silent,))

    def notes(*cards: DriverCard, why_silent: str = "") -> list[str]:
        return [note.partition(":")[0][:20] for note in notes_of(cards, why_silent, root=tmp_path)]

    host.write_text("kthreadd\n")
    assert notes() == []
    assert notes(card) == ["The driver does not "]
    assert notes(why_silent="there is none") == ["The driver cannot be"]
    host.write_text("bash\n")
    assert not sees_host_processes(tmp_path)
    assert notes() == ["This is a container"]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert notes(card) == ["This is WSL"]


def test_the_drivers_cards_and_who_is_on_them(tmp_path: Path) -> None:
    """What answers is the emulator's libnvidia-ml, by the name that the real one has.

    A process of the user's, one that cannot be seen from here, one whose bytes are not told, and one of a run on that
    card: its headroom is less what the driver says that others have now, and the card has one row.
    """
    told = made.facts(is_emulated=False, state="runs")
    made.write(tmp_path / "process-1.live", told, [made.sample(1, used_bytes=-1, reserved_bytes=GIB)])
    code = (
        "import sys, ullage; ullage.emulate('T4'); from ullage.cli.app import main; "
        "main(['watch', sys.argv[1], '--once', '--json'])"
    )
    with subprocess.Popen(["sleep", "60"]) as other:
        others = f"{other.pid}:1048576 4194999:2097152 {os.getppid()}:-1 {os.getpid()}:{GIB}"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env=os.environ | {"ULLAGE_EMULATED_OTHERS": others},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        other.kill()
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    answer = json.loads(done.stdout)
    [card], [inside] = answer["cards"], answer["processes"]
    assert (card["name"], card["is_emulated"], card["is_hearsay"]) == ("Tesla T4", True, False)
    rows = [(one["pid"], one["name"], one["used_bytes"], one["is_watched"]) for one in card["holders"]]
    sees = sees_host_processes()  # in a container the driver's numbers are not those of processes here
    assert rows[:2] == [(other.pid, "sleep" if sees else "", MIB, False), (4194999, "", 2 * MIB, False)]
    assert rows[2][2] is None
    assert (rows[3][0], rows[3][2:]) == (os.getpid(), (GIB, True))
    assert [one["is_ours"] for one in card["holders"]] == [sees, False, sees, True]
    assert any("does not report the memory" in note for note in answer["notes"])
    others_bytes = max(0, card["used_bytes"] - GIB)
    assert inside["devices"][0]["headroom_bytes"] == made.TOTAL - others_bytes - GIB


# ---- lines


def test_lines_end_with_what_they_watch(start: Start, tmp_path: Path) -> None:
    """Not on a terminal: a line a look until the last process has ended, its end with the evidence, exit code 0."""
    process = start(until="out of memory")
    command = [sys.executable, "-m", "ullage", "watch", str(tmp_path), "--seconds", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        while "runs, step" not in watching.stdout.readline():
            pass
        made.end(process)
        out, error = watching.communicate(timeout=900)
    assert (watching.returncode, error) == (0, "")
    assert "out of memory, step" in out
    assert out.count(f"evidence: ullage explain {tmp_path / f'oom-{process.pid}-1'}") == 1


def test_a_process_that_has_ended_has_its_lines_once(start: Start, tmp_path: Path) -> None:
    """While it is there each look has them, also of one that has written its end and is on its way out."""
    process, lines = start(until="out of memory"), PlainText()
    shown = [list(lines.lines_of(look(tmp_path))) for _ in range(2)]
    assert [sum("runs, step" in line for line in one) for one in shown] == [1, 1]
    made.end(process)
    shown = [list(lines.lines_of(look(tmp_path))) for _ in range(2)]
    assert [sum("out of memory, step" in line for line in one) for one in shown] == [1, 0]


def test_lines_end_with_ctrl_c(start: Start, tmp_path: Path) -> None:
    """It is the ordinary end; every line that was written is whole."""
    start()
    command = [sys.executable, "-m", "ullage", "watch", str(tmp_path), "--json", "--seconds", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        rest, error = watching.communicate(timeout=900)
    assert watching.returncode == 0, error
    assert "Traceback" not in error
    for line in (first + rest).splitlines():
        assert json.loads(line)["schema"] == 1


# ---- with `ullage run`


def test_a_real_run_is_watched_from_its_parent_to_its_end(tmp_path: Path) -> None:
    """An unmodified script on an emulated card: found by the number of `ullage run`, its inside, and how it ended."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(1024, 1024).cuda()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for step in range(5):\n"
        "    model(torch.randn(8, 1024, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "print('steps', flush=True); sys.stdin.read()\n"
        "raise SystemError('the end')\n"
    )
    command = [sys.executable, "-m", "ullage", "run", "--gpu", "T4", "--folder", "run", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "steps\n"
        with ViewSource(target_of(str(running.pid))) as source:
            view = source.poll()
            running.communicate(timeout=900)
            after = source.poll()
    [inside], [card] = view.processes, view.cards
    assert (inside.state, inside.is_alive, inside.is_emulated, card.is_emulated) == ("runs", True, True, True)
    assert inside.pid != running.pid
    assert inside.pid in {one.pid for one in card.holders}
    assert inside.devices[0].peak_steps[-1] == 5
    assert inside.devices[0].reserved_bytes >= inside.devices[0].allocated_bytes >= 3 * 4 * 1024 * 1024
    assert after.is_over
    assert [(one.pid, one.state) for one in after.processes] == [(inside.pid, "failed")]
