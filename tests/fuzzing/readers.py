"""The readers: for each kind of input where examples come from, how one is changed, and what then reads it."""

import gzip
import io
import json
import os
import pickle
import random
import shutil
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from tests.fuzzing.contradiction import contradiction_in
from tests.fuzzing.mutation import change_text, change_value, damage_bytes
from tests.fuzzing.packed_forms import archives, change_archive, change_notebook, change_page, notebooks, pages
from ullage.base.errors import UllageError
from ullage.cli.app import main
from ullage.running.run_files.facts import Arming, RunCard, RunFacts, RunPeak
from ullage.running.run_files.folder import ENVIRONMENT
from ullage.running.run_files.live import LiveWriter, Sample

CORPUS: Final = Path(__file__).parent / "corpus"
TEXTS: Final = Path(__file__).parents[1] / "explaining/analysis/data/texts.jsonl"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading an input has given."""

    what: str
    """The command or function."""
    code: int
    """The exit code; of a function 0, or 2 where it has refused the input by an error of ours."""
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of input."""

    name: str
    examples: Callable[[], list[bytes]]
    """Valid inputs."""
    change: Callable[[bytes, random.Random], bytes]
    read: Callable[[bytes, Path, int], Iterator[Outcome]]
    """Reads an input with a folder of its own to write to; the number chooses among the commands that read it."""
    contradiction: Callable[[bytes], str | None] = lambda data: None
    """Tells what in an input cannot be true; it has to be told, or the input refused."""

    def changed(self, chance: random.Random) -> bytes:
        """Return an example with random changes."""
        return self.change(chance.choice(self._examples()), chance)

    def _examples(self) -> list[bytes]:
        return _kept_examples(self.name)


@cache
def _kept_examples(name: str) -> list[bytes]:
    return READERS[name].examples()


def choice_of(data: bytes) -> int:
    """Return a number that chooses the command: the same for the same input, so that a finding can be repeated."""
    return zlib.crc32(data)


def command(*arguments: str) -> Outcome:
    """Run a command of ullage in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    return Outcome(" ".join(arguments), code, out.getvalue(), err.getvalue())


def _function(what: str, call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(what, 0, str(call()), "")
    except UllageError as error:
        return Outcome(what, 2, "", f"error: {error}\n")


def _snapshots() -> list[bytes]:
    return [gzip.decompress(path.read_bytes()) for path in sorted(CORPUS.glob("*.pickle.gz"))]


def _change_snapshot(data: bytes, chance: random.Random) -> bytes:
    changed = pickle.dumps(change_value(_values(data), chance), protocol=chance.choice((2, 4)))
    return gzip.compress(changed, 1) if chance.random() < 0.05 else changed


@cache
def _values(data: bytes) -> Any:
    return pickle.loads(data)  # an example, which the project has made itself


def _read_snapshot(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    file, other = scratch / "snapshot.pickle", scratch / "other.pickle"
    file.write_bytes(data)
    commands = (
        ("explain", str(file)),
        ("explain", str(file), "--json"),
        ("explain", str(file), "--all", "--device", "all"),
        ("explain", str(file), "--capacity", "100MiB"),
        ("explain", str(file), "--html", str(scratch / "page.html")),
        ("explain", str(file), "--sql", str(scratch / "tables.sqlite")),
        ("tune", str(file), "--budget", "0.1"),
        ("diff", str(file), str(other)),
        ("diff", str(other), str(file), "--at", "peak", "--json"),
        ("repro", str(file), "-o", str(scratch / "repro.py"), "--budget", "0.1"),
    )
    chosen = commands[choice % len(commands)]
    if chosen[0] == "diff":
        other.write_bytes(_kept_examples("snapshot")[choice // 16 % 6])
    yield command(*chosen)


@cache
def _texts() -> list[bytes]:
    return [json.loads(line)["text"].encode() for line in TEXTS.read_text(encoding="utf-8").splitlines()]


def _change_text(data: bytes, chance: random.Random) -> bytes:
    text = data.decode(errors="surrogateescape")
    if chance.random() < 0.2:  # a log in which two things went wrong
        text += "\n" + chance.choice(_texts()).decode()
    changed = change_text(text, chance).encode(errors="surrogatepass")
    return damage_bytes(changed, chance) if chance.random() < 0.2 else changed


def _read_text(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    file = scratch / "train.log"
    file.write_bytes(data)
    more = (("--json",), (), ("--all",), ("--html", str(scratch / "page.html")))
    yield command("explain", str(file), *more[min(choice % 16, 3)])


def _change_in_form(data: bytes, chance: random.Random) -> bytes:
    return _change_snapshot(data, chance) if chance.random() < 0.7 else damage_bytes(data, chance)


def _change_packed(data: bytes, chance: random.Random) -> bytes:
    return change_archive(data, chance, _change_in_form)


def _change_packed_text(data: bytes, chance: random.Random) -> bytes:
    return change_archive(data, chance, _change_text)


def _change_page(data: bytes, chance: random.Random) -> bytes:
    return change_page(data, chance, _change_in_form)


def _change_notebook(data: bytes, chance: random.Random) -> bytes:
    return change_notebook(data, chance, _change_text)


def _as_json() -> list[bytes]:
    return [json.dumps(_values(data), indent=number % 2 or None).encode() for number, data in enumerate(_snapshots())]


_SAMPLE: Final = Sample(3, 1.7e9, 0, 900 * _MIB, 1200 * _MIB, 1100 * _MIB, 1500 * _MIB, 20 * _MIB, 1, 0)
_FACTS: Final = RunFacts(
    pid=4_000_001, command=("train.py", "--lr", "1"),
    host="node1", started=1.7e9, told=1.7e9 + 5, rank=0, local_rank=0,
    world_size=2, torch="2.11.0", state="ended", steps=40, step_seconds=0.2,
    cards=(RunCard(index=0, name="T4", uuid="GPU-1", total_bytes=15 << 30, limit_bytes=15 << 30),),
    peaks=(RunPeak(bytes=1100 * _MIB, device=0, step=7, line="train.py:33"),),
    roles={"parameters": 300 * _MIB, "gradients": 300 * _MIB},
    arming=Arming(is_on=True, why="on", since_step=2, entries=99, budget_bytes=64 * _MIB, cost=1.01),
    growth=("MEMORY LEAK IN A LOOP: 3 MiB a step",), ooms=1, evidence=("oom-1",),
)  # fmt: skip


@cache
def _live_files() -> list[bytes]:
    files = []
    for steps in (1, 40):
        path = Path(os.environ.get("TMPDIR", "/tmp")) / f"ullage-fuzz-{os.getpid()}.live"
        with suppress(FileNotFoundError):
            path.unlink()
        writer = LiveWriter(path)
        for step in range(steps):
            writer.add(_SAMPLE._replace(step=step + 1, time=_SAMPLE.time + step, peak_bytes=(900 + step) * _MIB))
        writer.write_facts(_FACTS.to_json())
        files.append(path.read_bytes())
        path.unlink()
    return files


_FACTS_AT: Final = 4096


def _change_live(data: bytes, chance: random.Random) -> bytes:
    """Change a live file's facts as JSON, or its bytes where they mean something."""
    end = data.index(b"\0", _FACTS_AT)
    if chance.random() < 0.5:
        facts = json.dumps(change_value(json.loads(data[_FACTS_AT:end]), chance), default=str).encode()[: 1 << 16]
        head = data[:16] + len(facts).to_bytes(8, "little") + data[24:_FACTS_AT]
        return head + facts + data[_FACTS_AT + len(facts) :]
    changed = bytearray(data)
    starts = (0, _FACTS_AT, _FACTS_AT + (1 << 16), data.rindex(b"\x01", 0, len(data) - 100) - 2000)
    for _ in range(chance.choice((1, 2, 8))):
        start = chance.choice(starts)
        piece = damage_bytes(bytes(changed[start : start + 400]), chance)
        changed[start : start + len(piece)] = piece
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.02 else changed)


@dataclass(slots=True)
class _Scrape:
    """An endpoint for Prometheus, which is open as long as the process lives."""

    folder: Path
    endpoint: Any = field(init=False)

    def __post_init__(self) -> None:
        from ullage.running.export.prometheus import Endpoint

        self.endpoint = Endpoint("0")
        self.endpoint.update(self.folder)

    def read(self) -> str:
        """Return what a scrape gets."""
        with urllib.request.urlopen(self.endpoint.url, timeout=900) as answer:
            return str(answer.read().decode())


_scrapes: dict[Path, _Scrape] = {}


def _read_live(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    run = scratch / "run"
    run.mkdir(exist_ok=True)
    (run / "rank0-1234.live").write_bytes(data)
    yield from _read_run(run, choice)


def _read_run(run: Path, choice: int) -> Iterator[Outcome]:
    match choice % 5:
        case 0:
            yield command("explain", str(run))
        case 1:
            yield command("explain", str(run), "--json")
        case 2:
            yield command("watch", str(run), "--once")
        case 3:
            yield command("watch", str(run), "--once", "--json")
        case 4:
            if run not in _scrapes:
                _scrapes[run] = _Scrape(run)
            yield _function("scrape", _scrapes[run].read)


def _evidence() -> list[bytes]:
    """What a run writes when memory runs out, beside the snapshot."""
    environment = {
        "device": 0, "asked_bytes": 20 * _MIB, "time": 1.7e9, "line": "train.py:33", "is_in_backward": False,
        "stack": [{"file": "/home/user/train.py", "line": 33, "name": "step"}], "torch": "2.11.0", "cuda": "13.0",
        "python": "3.12.1", "command": ["python", "train.py"], "pid": 1234, "rank": 0, "step": 7,
        "driver_free_bytes": 3 * _MIB, "variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    }  # fmt: skip
    return [json.dumps(environment).encode()]


def _read_evidence(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    run = scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    (run / "oom-1").mkdir(parents=True)
    (run / "rank0-1234.live").write_bytes(_live_files()[1])
    (run / "oom-1/snapshot.pickle").write_bytes(_kept_examples("snapshot")[choice // 8 % 6])
    (run / "oom-1" / ENVIRONMENT).write_bytes(data)
    yield from _read_run(run, choice)


_SETTINGS: Final = (
    "expandable_segments:True", "max_split_size_mb:128,garbage_collection_threshold:0.8", "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "backend:native,pinned_use_cuda_host_register:True",
    "large_segment_size_mb:40,per_process_memory_fraction:0.5", "graph_capture_record_stream_reuse:True",
    "pinned_reserve_segment_size_mb:4,pinned_num_register_threads:8",
)  # fmt: skip


def _read_settings(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    from ullage.recorded.settings import parse_settings, semantics_of, text_of_settings

    text = data.decode(errors="replace").replace("\0", "")
    version = ("2.8", "2.11", "2.15", "2.6")[choice % 4]

    def read_twice() -> str:
        """What was read and written again has to mean the same."""
        read = parse_settings(text, semantics=semantics_of(version))
        again = parse_settings(text_of_settings(read), semantics=semantics_of(version))
        fraction = again.per_process_memory_fraction  # the one that is not written
        assert again == replace(read, per_process_memory_fraction=fraction), text_of_settings(read)
        return text_of_settings(read)

    if choice % 8:
        yield _function("settings", read_twice)
    else:
        file = scratch / "snapshot.pickle"
        file.write_bytes(_kept_examples("snapshot")[choice // 16 % 6])
        yield command("explain", str(file), "--torch-version", version, f"--alloc-conf={text}")


_CARDS: Final = (
    "RTX 4090", "A100 80GB", "A100 1g.10gb", "T4", "24GiB", "H100", "0.5 GB", "80 GiB", "rtx4090 laptop",
    "2.11.0", "2.8",
)  # fmt: skip


def _read_card(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    from ullage.api.values import capacity_of, semantics_given, size_of
    from ullage.gpu.gpus import find_gpu

    text = data.decode(errors="replace")
    yield _function("card", lambda: find_gpu(text))
    yield _function("size", lambda: size_of(text, "--vram"))
    yield _function("capacity", lambda: capacity_of(text))
    yield _function("torch version", lambda: semantics_given(text))


_MOST_JSON_BYTES: Final = 1 << 20
"""More than goes through a pipe or a variable at once."""


def _messages() -> list[bytes]:
    return [line.encode() for line in (CORPUS / "messages.jsonl").read_text(encoding="utf-8").splitlines()]


def _change_json(data: bytes, chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.01:  # deeper than anybody's stack
        return b"[" * 200_000
    if kind < 0.2:
        return damage_bytes(data, chance)
    return json.dumps(change_value(json.loads(data), chance), default=str).encode()[:_MOST_JSON_BYTES]


def _read_message(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    """Read what a script's process tells its parent, as the parent does; the script can write there too."""
    from ullage.predicting.prediction.process.listener import ChildReport, Listener, _Voice
    from ullage.predicting.prediction.request import Request

    report = ChildReport()
    request = Request.of("train.py", gpu="T4")
    listener = Listener(cast(Any, None), request, lambda text: None, lambda: False)
    voice = _Voice(-1, report, 0)

    def take() -> str:
        listener._take(voice, data.replace(b"\n", b" ") + b"\n")
        return "a message" if report.started or report.is_final else "no message"

    yield _function("message", take)


def _variables() -> list[bytes]:
    return [json.dumps({"folder": "ullage-runs/1", "history": "auto", "budget_bytes": 64 * _MIB}).encode()]


def _read_variable(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    """Read the variable by which a run tells its processes what to record."""
    from ullage.running.recording.plan import VARIABLE, RecordingPlan

    text = data.decode(errors="replace").replace("\0", "")
    yield _function("recording", lambda: RecordingPlan.of({VARIABLE: text}))


def _timelines() -> list[bytes]:
    """What the profiler's export_memory_timeline writes as JSON: moments, and the bytes of each category at each."""
    sizes = [[0, 4 << 30, 8 << 30, 0, 0, step << 30, 0, 0, 0] for step in (0, 2, 6, 1)]
    return [json.dumps([[0, 1, 2, 3], sizes]).encode(), json.dumps([[], []]).encode()]


def _read_timeline(data: bytes, scratch: Path, choice: int) -> Iterator[Outcome]:
    file = scratch / "timeline.json"
    file.write_bytes(data)
    yield command("explain", str(file), *(("--json",), ("--all",))[choice % 2])


def _change_words(data: bytes, chance: random.Random) -> bytes:
    return change_text(data.decode(), chance).encode(errors="surrogatepass")


def _examples_of(texts: tuple[str, ...]) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


_READERS: Final = (
    Reader(
        name="snapshot",
        examples=_snapshots,
        change=_change_snapshot,
        read=_read_snapshot,
        contradiction=contradiction_in,
    ),
    Reader(name="snapshot-bytes", examples=_snapshots, change=damage_bytes, read=_read_snapshot),
    Reader(name="text", examples=_texts, change=_change_text, read=_read_text),
    Reader(name="packed", examples=lambda: archives(_snapshots()), change=_change_packed, read=_read_snapshot),
    Reader(name="packed-text", examples=lambda: archives(_texts()[::9]), change=_change_packed_text, read=_read_text),
    Reader(name="json", examples=_as_json, change=_change_json, read=_read_snapshot),
    Reader(name="page", examples=lambda: pages(_snapshots()), change=_change_page, read=_read_snapshot),
    Reader(name="timeline", examples=_timelines, change=_change_json, read=_read_timeline),
    Reader(name="notebook", examples=lambda: notebooks(_texts()), change=_change_notebook, read=_read_text),
    Reader(name="live", examples=_live_files, change=_change_live, read=_read_live),
    Reader(name="run-folder", examples=_evidence, change=_change_json, read=_read_evidence),
    Reader(name="settings", examples=_examples_of(_SETTINGS), change=_change_words, read=_read_settings),
    Reader(name="card", examples=_examples_of(_CARDS), change=_change_words, read=_read_card),
    Reader(name="message", examples=_messages, change=_change_json, read=_read_message),
    Reader(name="variable", examples=_variables, change=_change_json, read=_read_variable),
)
READERS: Final[dict[str, Reader]] = {reader.name: reader for reader in _READERS}
