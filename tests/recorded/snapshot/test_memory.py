"""Whatever a file says, each command that reads it takes 20 times its unpacked size and 200 MB at most."""

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE_BYTES = 8 << 20
CODE = """
import json, re, sys
from ullage.base.errors import UllageError
from ullage.cli.app import app
said = ""
try:
    app(args=sys.argv[1:], standalone_mode=False)
except UllageError as error:
    said = str(error)
except SystemExit:
    pass
status = open("/proc/self/status").read()
sys.stderr.write(json.dumps({"most": int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) << 10, "said": said}))
"""


def _trace(count: int, **more: Any) -> list[dict[str, Any]]:
    entry = {"action": "alloc", "size": 512, "stream": 0, "frames": [], **more}
    return [{**entry, "addr": (1 << 40) + 512 * n, "time_us": n} for n in range(count)]


def _of_traces(*traces: list[dict[str, Any]]) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": list(traces)}, 4)


def _repeated(piece: bytes, *, keys: bytes = b"", where: bytes = b"segments", after: bytes = b"eu.") -> bytes:
    head = b"\x80\x04" + keys + b"}(\x8c" + bytes([len(where)]) + where + b"]("
    return head + piece * (FILE_BYTES // len(piece)) + after


def _kept(*texts: bytes) -> bytes:
    """Texts that are kept as 0, 1, 2 ... for the rest of the file to name."""
    return b"".join(b"\x8c" + bytes([len(text)]) + text + b"\x940" for text in texts)


def _long_bytes() -> bytes:
    long = b"B" + struct.pack("<I", 100_000) + bytes(100_000) + b"\x940"
    return _repeated(b"h\x00", keys=long)


def _same_entry() -> bytes:
    entry = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01u\x940"
    return _repeated(b"h\x00", keys=entry, where=b"device_traces](", after=b"eeu.").replace(
        b"\x0fdevice_traces](", b"\x0ddevice_traces]("
    )


def _long_names() -> bytes:
    frames = [{"name": NAME, "filename": NAME, "line": n} for n in range(400)]
    return _of_traces([{**entry, "frames": [frame]} for entry, frame in zip(_trace(400), frames, strict=True)])


NAME = "n" * (1 << 20)
TOO_MUCH = "would take many times its own size in memory, which is not the case for a snapshot"
SAYS_NOTHING = "contains no out-of-memory error"


def _json(head: bytes, piece: bytes, end: bytes) -> bytes:
    return head + piece * (FILE_BYTES // len(piece)) + end


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "tuples in tuples": (lambda: b"\x80\x04)" + b"\x85" * FILE_BYTES, TOO_MUCH),
    "empty lists": (lambda: _repeated(b"]"), TOO_MUCH),
    "empty segments": (lambda: _repeated(b"}"), TOO_MUCH),
    "bytes that are named again": (_long_bytes, TOO_MUCH),
    "JSON, empty lists": (lambda: _json(b'{"segments": [[', b"[],", b"[]]]}"), TOO_MUCH),
    "JSON, empty segments": (lambda: _json(b'{"segments": [', b"{},", b"{}]}"), TOO_MUCH),
    "JSON, small entries": (lambda: _json(b'{"device_traces": [[', b'{"a":{}},', b"{}]]}"), TOO_MUCH),
    "a notebook of empty lists": (lambda: _json(b'{"cells": [', b'{"":[]},', b"{}]}"), SAYS_NOTHING),
    "annotations": (
        lambda: _repeated(
            b"}(h\x00h\x01h\x02h\x01u", keys=_kept(b"name", b"x", b"stage"), where=b"external_annotations"
        ),
        TOO_MUCH,
    ),
    "an entry that is named again": (_same_entry, "refers to the same entry twice in its traces"),
    "long names of many frames": (_long_names, "the names of its 400 frames would take 800.0 MiB"),
    "a stream for each entry": (
        lambda: _of_traces([{**entry, "stream": n} for n, entry in enumerate(_trace(100_000))]),
        "device 0 has 100,000 streams and 1 pools; expected at most 16,384 pairs of them",
    ),
    "a pool for each entry": (
        lambda: _of_traces([{**entry, "pool_id": (n + 1, 0)} for n, entry in enumerate(_trace(100_000))]),
        "device 0 has 1 streams and 100,001 pools; expected at most 16,384 pairs of them",
    ),
}


def _ended(*arguments: str | Path) -> dict[str, Any]:
    """Run a command; return the most memory that its process had, and its error."""
    ran = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_would_take_far_more_than_its_size_is_refused(tmp_path: Path, name: str) -> None:
    make, said = REFUSED[name]
    path = tmp_path / "snapshot.pickle.gz"
    data = make()
    path.write_bytes(gzip.compress(data, 1))
    found = _ended("explain", path)
    assert said in found["said"]
    assert found["most"] < 20 * len(data) + 200_000_000


def _state() -> bytes:
    blocks = [
        {"address": (1 << 40) + 512 * n, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
        for n in range(FILE_BYTES // 45)
    ]
    segment = {"device": 0, "address": 1 << 40, "total_size": 512 * len(blocks), "stream": 0, "blocks": blocks}
    return pickle.dumps({"segments": [segment], "device_traces": []}, 4)


def _stacks() -> bytes:
    frames = [{"name": f"f{n}", "filename": f"/a/{n}.py", "line": n} for n in range(500)]
    return _of_traces(
        [
            {**entry, "frames": [frames[(n * 7 + k * (n % 13 + 1)) % 500] for k in range(40)]}
            for n, entry in enumerate(_trace(50_000))
        ]
    )


def _frames() -> bytes:
    """A frame of its own for every entry."""
    return _of_traces(
        [
            {**entry, "frames": [{"name": f"f{n}", "filename": f"/a/{n}.py", "line": n}]}
            for n, entry in enumerate(_trace(100_000))
        ]
    )


COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "FILE"),
    "explain --html": ("explain", "FILE", "--html", "page.html"),
    "explain --sql": ("explain", "FILE", "--sql", "tables.sqlite"),
    "tune": ("tune", "FILE", "--budget", "3"),
    "diff": ("diff", "FILE", "FILE", "--html", "page.html"),
    "repro": ("repro", "FILE", "-o", "repro.py", "--budget", "3"),
}
IN_SHORT = {("blocks", "explain"), ("stacks", "explain"), ("trace", "explain"), ("frames", "explain --html")}
MANY: dict[str, Callable[[], bytes]] = {
    "blocks": _state,
    "stacks": _stacks,
    "trace": lambda: _of_traces(_trace(FILE_BYTES // 50)),
    "frames": _frames,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", MANY)
def test_a_file_of_many_small_things_is_read_within_the_same_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    if (name, command) not in IN_SHORT and not os.environ.get("ULLAGE_SLOW"):
        pytest.skip("five minutes for all; make slow")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(MANY[name]())
    found = _ended(*(str(path) if word == "FILE" else word for word in COMMANDS[command]))
    assert found["said"] == "" or "nothing to re" in found["said"]
    assert found["most"] < 20 * os.path.getsize(path) * (2 if command == "diff" else 1) + 200_000_000
