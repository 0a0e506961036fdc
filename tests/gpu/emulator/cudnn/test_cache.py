"""Answers on disk: any number of processes, and whatever lies in the folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.gpu.emulator.cudnn.cache import Cache, default_folder

ANSWER = "workspace 1 1 1 cudnn\n"


def cache_in(folder: Path, *, tag: str = "91900", device_json: str = "{}") -> Cache:
    """The cache of one card."""
    return Cache(folder, tag=tag, device_json=device_json)


def files_of(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_answer_is_kept_for_its_question_version_and_card(tmp_path: Path) -> None:
    """Another question, cuDNN or card has no answer."""
    cache_in(tmp_path).put("plan 0\n17\n", ANSWER)
    assert cache_in(tmp_path).get("plan 0\n17\n") == ANSWER
    assert cache_in(tmp_path).get("plan 1\n17\n") is None
    assert cache_in(tmp_path, tag="92600").get("plan 0\n17\n") is None
    assert cache_in(tmp_path, device_json='{"deviceVer": 860}').get("plan 0\n17\n") is None


@pytest.mark.parametrize("length", range(0, len("plan 0\n17\n\n" + ANSWER), 3))
def test_half_a_file_is_no_answer(tmp_path: Path, length: int) -> None:
    """A file that ends too early, as after a crash of the machine, is asked for again."""
    cache = cache_in(tmp_path)
    cache.put("plan 0\n17\n", ANSWER)
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get("plan 0\n17\n") is None
    cache.put("plan 0\n17\n", ANSWER)
    assert cache.get("plan 0\n17\n") == ANSWER


@pytest.mark.parametrize("place", [0, 9, 13, 25, -80, -1])
def test_a_damaged_file_is_no_answer(tmp_path: Path, place: int) -> None:
    """One bit is enough, wherever it is."""
    cache = cache_in(tmp_path)
    cache.put("plan 0\n17\n", ANSWER)
    (path,) = files_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert cache.get("plan 0\n17\n") is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe has no end, nor has a device behind a link."""
    cache = cache_in(tmp_path)
    cache.put("plan 0\n17\n", ANSWER)
    (path,) = files_of(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert cache.get("plan 0\n17\n") is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert cache.get("plan 0\n17\n") is None


@pytest.mark.parametrize("foreign", [b"", b"\xff\xfe\x00", b"\n\n\n", b"plan 1\n17\n\nworkspace 2 2 2 cudnn\n"])
def test_a_foreign_file_is_no_answer(tmp_path: Path, foreign: bytes) -> None:
    """What is not ours, not text, or of another question of the same name, is no answer."""
    cache = cache_in(tmp_path)
    cache.put("plan 0\n17\n", ANSWER)
    (path,) = files_of(tmp_path)
    path.write_bytes(foreign)
    assert cache.get("plan 0\n17\n") is None


def test_a_folder_in_the_way_is_no_answer(tmp_path: Path) -> None:
    """Neither reading nor writing fails where a folder has the file's name."""
    cache = cache_in(tmp_path)
    cache.put("plan 0\n17\n", ANSWER)
    (path,) = files_of(tmp_path)
    path.unlink()
    path.mkdir()
    assert cache.get("plan 0\n17\n") is None
    cache.put("plan 0\n17\n", ANSWER)


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    """Nothing is raised, nothing is written, and it is not tried again."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = cache_in(blocked / "below")
    cache.put("plan 0\n17\n", ANSWER)
    assert cache.get("plan 0\n17\n") is None
    blocked.unlink()
    cache.put("plan 0\n17\n", ANSWER)
    assert files_of(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from ullage.gpu.emulator.cudnn.cache import Cache
cache = Cache(Path(sys.argv[1]), tag="91900", device_json="{}")
sys.stdin.readline()
seen = 0
for round in range(30):
    for number in range(20):
        question, answer = f"plan {number}\\n17\\n", f"workspace {number} {'9' * 20000} cudnn\\n"
        found = cache.get(question)
        assert found in (None, answer), found[:100]
        seen += found is not None
        if found is None or round % 3 == 0:
            cache.put(question, answer)
print(seen)
"""


def test_processes_that_write_at_once_read_whole_answers(tmp_path: Path) -> None:
    """Of four processes on one folder none reads half of what another writes, and only answers are left in it."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0
        assert int(out) >= 29 * 20  # each question is asked in vain once at most: then this process has written it
    assert len(files_of(tmp_path)) == 20


def test_where_answers_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder that is named, else the user's folder of caches."""
    monkeypatch.setenv("ULLAGE_CUDNN_CACHE", str(tmp_path / "named"))
    assert default_folder() == tmp_path / "named"
    monkeypatch.delenv("ULLAGE_CUDNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "ullage" / "cudnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder().is_relative_to(os.path.expanduser("~"))
