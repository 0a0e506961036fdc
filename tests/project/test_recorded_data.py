"""Recorded data has no paths of the machine that recorded it. Compressed files are unpacked, also within archives."""

import bz2
import gzip
import io
import lzma
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "docs", "examples", "benchmarks")
_SOURCES = (".py", ".pyi", ".md", ".c", ".cpp", ".h", ".hpp", ".sh", ".js", ".css", ".toml", ".yml", ".yaml")
WRITTEN = frozenset((*_SOURCES, ".pyc", ".so", ".png"))
"""The endings of files that people write or draw, and of what is built of them."""
PUBLIC = frozenset(
    f"tests/explaining/analysis/data/{name}.jsonl" for name in ("texts", "threads_rules", "threads_measure")
)
"""Texts that their authors published with paths of their own machines."""
ALLOWED = (
    *("/home/user/", "/home/u/", "/home/me/", "/opt/venv/", "/opt/conda/", "/venv/", "/data/", "/w/", "/v/"),
    *("/usr/", "/lib/", "/etc/", "/dev/", "/proc/", "/sys/", "/bin/", "/kaggle/"),
    *("/pytorch/", "/__w/pytorch/", "/tmp/ipykernel_"),  # PyTorch's wheels are built in the first two
)
"""The folders that any machine has, and neutral ones."""
# In a pickle, the byte before a text is its length, which may look like a letter.
_PATH = re.compile(rb"(?:(?<![\w./:~<>$}*+@%&)\]-])|(?<=\x8c[\0-\xff]))/[\w.+@-]+/[\w.+@-]+(?:/[\w.+@-]+)*")
_WINDOWS_USER = re.compile(rb"[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2}(\w+)")


def data_files() -> list[Path]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    kept = [
        path for path in paths if path.suffix not in WRITTEN and not set(path.parts) & {"__pycache__", ".mypy_cache"}
    ]
    return [path for path in kept if path.relative_to(ROOT).as_posix() not in PUBLIC]


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield the data if it is not compressed, or else everything that is packed in it."""
    readers = {b"\x1f\x8b": gzip.decompress, b"\xfd7zXZ\0": lzma.decompress, b"BZh": bz2.decompress, b"PK\3\4": _of_zip}
    read = next((read for beginning, read in readers.items() if data.startswith(beginning)), None)
    if read is None:
        yield data
        return
    try:
        content = read(data)
    except Exception:  # an archive that is damaged on purpose
        yield data
        return
    for inner in [content] if isinstance(content, bytes) else content:
        yield from unpacked(inner)


def _of_zip(data: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [part for info in archive.infolist() for part in (info.filename.encode(), archive.read(info))]


def foreign_paths(data: bytes) -> set[str]:
    paths = {found[0].decode("latin-1") for content in unpacked(data) for found in _PATH.finditer(content)}
    users = {found[0].decode("latin-1") for content in unpacked(data) for found in _WINDOWS_USER.finditer(content)}
    return {path for path in paths if not path.startswith(ALLOWED)} | {user for user in users if "me" not in user[-4:]}


def test_recorded_data_has_no_paths_of_a_machine() -> None:
    files = data_files()
    assert any(path.suffix == ".gz" for path in files)
    found = {path.relative_to(ROOT).as_posix(): sorted(foreign_paths(path.read_bytes()))[:5] for path in files}
    assert {name: paths for name, paths in found.items() if paths} == {}


@pytest.mark.parametrize("path", ["/root/train.py", "/work/a/b.py", "/tmp/pytest-of-me/x.py", "/home/anna/x/y.py"])
def test_a_path_of_a_machine_is_found(path: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.pickle.gz", gzip.compress(pickle.dumps({"frames": [{"filename": path}]}, 4)))
    for data in (path.encode(), pickle.dumps([path], 2), pickle.dumps([path * 3], 4), made.getvalue()):
        assert any(one.startswith(path) for one in foreign_paths(data))
    long = "/root/" + "x" * 60  # its length, 66, is the letter B
    assert foreign_paths(pickle.dumps([long], 4)) == {long}
