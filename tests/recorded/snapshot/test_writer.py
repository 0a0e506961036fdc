"""What is read and written is read again as it was, and PyTorch's own viewer opens it."""

import gzip
import json
import pickle
import pickletools
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recorded.snapshot.writer import write_snapshot
from ullage.recorded.history import History, Labels
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
NAMES = sorted(path.name.removesuffix(".pickle.gz") for path in DATA.glob("*.pickle.gz"))
BASE = 0x7F0000000000


def recorded(name: str) -> History:
    return load_snapshot(DATA / f"{name}.pickle.gz").devices[0]


def said(history: History) -> list[Any]:
    """All that a history says, as plain data: stacks by their frames, not by their numbers."""
    frames: dict[int, Any] = {-1: ()}
    for stack in [*np.unique(history.stack).tolist(), *(b.stack for s in history.segments for b in s.blocks)]:
        frames[stack] = history.stacks.frames_of(stack)
    found: list[Any] = [[frames[stack] for stack in history.stack.tolist()]]
    for field in fields(history):
        value = getattr(history, field.name)
        if isinstance(value, np.ndarray) and field.name != "stack":
            found.append((field.name, value.tolist()))
        elif isinstance(value, Labels):
            found += [value.metadata.tolist(), value.context.tolist(), value.pool.tolist(), value.texts]
        elif field.name == "segments":
            found += [
                (replace(s, blocks=()), [(replace(b, stack=0), frames[b.stack]) for b in s.blocks]) for s in value
            ]
        elif field.name not in ("stack", "stacks"):
            found.append((field.name, value))
    return found


@pytest.mark.parametrize(("name", "ending"), [*((name, "pickle") for name in NAMES), ("normal", "pickle.gz")])
def test_what_was_read_is_written_and_read_again(tmp_path: Path, name: str, ending: str) -> None:
    history = recorded(name)
    path = tmp_path / f"again.{ending}"
    write_snapshot([history], path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (ending == "pickle.gz")
    (again,) = load_snapshot(path).devices.values()
    # The writer leaves out pinned host memory, and keys that say nothing but a version.
    assert said(again) == said(replace(history, pinned=None, release=again.release))


def test_several_devices_and_what_was_put_on_entries(tmp_path: Path) -> None:
    """Gaps between devices stay; labels, pools and requests that failed are written as PyTorch does it."""
    frames = [{"name": "f", "filename": "f.py", "line": 1}]
    bare = {"size": 512, "stream": 0, "frames": frames}
    trace = [
        {"action": "alloc", "addr": BASE, "user_metadata": "step 1", "pool_id": (0, 3), **bare},
        {"action": "oom", "device_free": 7, "compile_context": "Region 0/0", "time_us": 9, **bare},
        {"action": "annotate", "addr": BASE, **bare},
    ]
    segment = {
        "device": 2,
        "address": BASE,
        "total_size": 512,
        "blocks": [{"size": 512, "state": "active_pending_free"}],
    }
    annotation = {"stage": "START", "name": "step", "device": 4, "time_us": 3}
    path = tmp_path / "first.pickle"
    path.write_bytes(
        pickle.dumps(
            {"segments": [segment], "device_traces": [[], [], [], [], trace], "external_annotations": [annotation]}
        )
    )
    found = load_snapshot(path).devices
    assert list(found) == [2, 4]
    write_snapshot(found.values(), tmp_path / "again.pickle")
    again = load_snapshot(tmp_path / "again.pickle").devices
    assert {device: said(one) for device, one in again.items()} == {device: said(one) for device, one in found.items()}
    plain = pickle.loads((tmp_path / "again.pickle").read_bytes())
    assert [len(trace) for trace in plain["device_traces"]] == [0, 0, 0, 0, 3]
    assert plain["device_traces"][4][1] == {
        **trace[1],
        "pool_id": (0, 0),
    }
    assert (plain["segments"][0]["allocated_size"], plain["segments"][0]["active_size"]) == (0, 512)


def test_it_is_plain_data(tmp_path: Path) -> None:
    """Nothing in the file names a class: numpy's numbers would."""
    path = tmp_path / "again.pickle"
    write_snapshot([recorded("two_streams")], path)
    named = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert not named & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}


def test_a_stack_is_written_once(tmp_path: Path) -> None:
    """The file is no larger than PyTorch's own."""
    path = tmp_path / "again.pickle"
    write_snapshot([recorded("normal")], path)
    assert path.stat().st_size < 1.1 * len(gzip.decompress((DATA / "normal.pickle.gz").read_bytes()))


def test_nothing_to_write(tmp_path: Path) -> None:
    write_snapshot([], tmp_path / "none.pickle")
    (history,) = load_snapshot(tmp_path / "none.pickle").devices.values()
    assert (len(history), history.segments) == (0, ())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_snapshot([], tmp_path / "no folder" / "none.pickle")


# torch itself is not imported: it wants a card's libraries, its viewer only Python's own.
VIEWER = """
import importlib.util, json, pickle, runpy, sys
from pathlib import Path
place = Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"
viewer = runpy.run_path(str(place))
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
plain = lambda lines, script=None: lines  # its flame graphs are drawn by a script from the network
memory, segments = (viewer[name](data, format_flamegraph=plain).splitlines() for name in ("memory", "segments"))
sizes = sorted(int(line.rsplit(" ", 1)[1]) for line in memory)
names = sorted({line.split(";")[1] for line in segments})
print(json.dumps([sizes, names, viewer["segsum"](data), viewer["trace"](data)]))
snapshot, page = sys.argv[1:]
for command, *options in (["trace_plot"], ["trace_plot", "-s"], ["segment_plot"]):
    sys.argv = ["_memory_viz", command, snapshot, "-o", page, *options]
    runpy.run_path(str(place), run_name="__main__")
"""


@pytest.mark.parametrize("name", ["oom", "two_streams"])
def test_pytorchs_own_viewer_opens_it(tmp_path: Path, name: str) -> None:
    """Every command of torch.cuda._memory_viz; it says of the file what it says of PyTorch's own."""
    own, again, page = tmp_path / "own.pickle", tmp_path / "again.pickle", tmp_path / "page.html"
    own.write_bytes(gzip.decompress((DATA / f"{name}.pickle.gz").read_bytes()))
    write_snapshot([recorded(name)], again)
    answers = []
    for path in (own, again):
        command = [sys.executable, "-c", VIEWER, str(path), str(page)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        answers.append(json.loads(done.stdout))
        assert "MemoryViz.js" in page.read_text()
        page.unlink()
    assert answers[0] == answers[1]
