"""A snapshot in the forms in which people pass it on: packed, as JSON, in a page of PyTorch's viewer, by torch.save."""

import base64
import bz2
import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recorded.snapshot.writer import plain_of
from ullage.api.explain import explain
from ullage.api.input import InputKind, input_of
from ullage.base.errors import UsageError
from ullage.base.packed import unpacked
from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot

PICKLE = gzip.decompress((Path(__file__).parents[2] / "snapshots" / "oom.pickle.gz").read_bytes())
ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 12, in <module>\n'
    "    loss = model(batch)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 0.50 GiB is free. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by "
    "PyTorch but unallocated.\n"
)


def zipped(*files: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return made.getvalue()


def tarred(mode: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{mode}") as archive:
        info = tarfile.TarInfo("oom.pickle")
        info.size = len(PICKLE)
        archive.addfile(info, io.BytesIO(PICKLE))
    return made.getvalue()


def page(content: bytes) -> bytes:
    """As torch.cuda._memory_viz writes it."""
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(content).decode()}])
    return (
        '\n<!DOCTYPE html>\n<html>\n<head>\n</head>\n<body>\n<script type="module">\nimport {add_local_files} from '
        '"https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js"\n'
        f"const local_files = {files}\nadd_local_files(local_files, 'Active Memory Timeline')\n</script>\n</body>\n"
    ).encode()


def padded(content: bytes) -> bytes:
    """The viewer's page adds zeros behind the pickle."""
    return content + b"\0" * (3 - len(content) % 3)


FORMS: dict[str, Callable[[], bytes]] = {
    "zip": lambda: zipped(("oom.pickle", PICKLE)),
    "zip, stored": lambda: zipped(("oom.pickle", PICKLE), how=zipfile.ZIP_STORED),
    "zip in a folder": lambda: zipped(("run/", b""), ("run/oom.pickle", PICKLE)),
    "zip of macOS": lambda: zipped(("oom.pickle", PICKLE), ("__MACOSX/._oom.pickle", b"\0"), (".DS_Store", b"\0")),
    "zip of gzip": lambda: zipped(("oom.pickle.gz", gzip.compress(PICKLE))),
    "torch.save": lambda: zipped(("oom/data.pkl", PICKLE), ("oom/version", b"3\n"), how=zipfile.ZIP_STORED),
    "page of the viewer": lambda: page(padded(PICKLE)),
    "page, gzip": lambda: gzip.compress(page(padded(PICKLE))),
    "JSON": lambda: json.dumps(pickle.loads(PICKLE)).encode(),
    "JSON, indented": lambda: json.dumps(pickle.loads(PICKLE), indent=2).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_snapshot_in_another_form_is_the_same_snapshot(form: str, tmp_path: Path) -> None:
    plain, other = tmp_path / "oom.pickle", tmp_path / "other"
    plain.write_bytes(PICKLE)
    other.write_bytes(FORMS[form]())
    assert input_of(other).kind is InputKind.SNAPSHOT
    one, two = load_snapshot(plain).devices[0], load_snapshot(other).devices[0]
    assert plain_of([one]) == plain_of([two])
    assert len(two.stacks.table) <= len(one.stacks.table)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            zipped(("a.pickle", PICKLE), ("b.pickle", PICKLE)),
            "that has 2 files ('a.pickle', 'b.pickle')",
        ),
        (zipped(("empty/", b"")), "a zip archive that does not contain a file"),
        (zipped(("a.pickle", PICKLE), how=zipfile.ZIP_LZMA), "a zip archive with an unusual compression method"),
        (zipped(("a.pickle", PICKLE))[:-40], "cannot be read"),
        (tarred(""), "it is a tar archive; unpack it"),
        (tarred("gz"), "it is a tar archive; unpack it"),
        (bz2.compress(PICKLE), "it is compressed by bzip2; unpack it"),
        (page(PICKLE)[:2000], "contains no complete snapshot"),
        (page(PICKLE).replace(b'64": "gA', b'64": "%A'), "the page of PyTorch's viewer is damaged"),
        (b'{"segments": [{"device": 0,', "it is JSON that is damaged or incomplete"),
        (b'{"segments": ' + b"[" * 100_000, "it is JSON that is damaged or incomplete"),
        (
            b'\n  {\n    "schemaVersion": 1,\n    "traceEvents": []}',
            "it is a profiler's trace; it records which operations ran",
        ),
    ],
)
def test_what_is_no_snapshot_is_named_with_what_to_do(content: bytes, said: str, tmp_path: Path) -> None:
    """Each was taken for a log that "contains no out-of-memory error", or for a snapshot to be unpacked."""
    path = tmp_path / "file"
    path.write_bytes(content)
    assert content[:2] == b"PK" or input_of(path).kind in (InputKind.SNAPSHOT, InputKind.ARCHIVE)
    with pytest.raises(SnapshotError) as raised:
        load_snapshot(path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [zipped(("train.log", ERROR.encode())), gzip.compress(ERROR.encode()), ERROR.encode("utf-16")],
    ids=["zip", "gzip", "UTF-16, as PowerShell writes it"],
)
def test_a_packed_log_is_read_as_the_log(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert input_of(path).kind is InputKind.TEXT
    assert explain(path).cause.value == "truly_full"


def test_a_zip_of_several_logs_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    path.write_bytes(zipped(("a.log", ERROR.encode()), ("b.log", ERROR.encode())))
    with pytest.raises(UsageError, match="has 2 files"):
        explain(path)


def test_a_zip_through_a_pipe_is_refused_in_one_sentence() -> None:
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write(zipped(("a.log", ERROR.encode())))
    with (
        open(reading, "rb") as raw,
        pytest.raises(UsageError, match="is a zip archive from a pipe, which cannot be read"),
    ):
        unpacked(raw, "standard input")


def test_a_small_zip_that_unpacks_to_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.recorded.snapshot.file.memory_bytes", lambda: 8 << 20)
    path = tmp_path / "bomb.zip"
    path.write_bytes(zipped(("a.pickle", bytes(64 << 20))))
    with pytest.raises(SnapshotError, match="decompresses to more than"):
        load_snapshot(path)
