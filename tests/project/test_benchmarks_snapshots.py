"""The independent reading of a snapshot by which `make snapshots` judges ullage, and the target itself.

What is expected follows from the sizes in a test, or is the answer of the other reading.
"""

import gzip
import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.snapshots.raw import cards_of, read
from benchmarks.snapshots.run import published
from tests.forked import client
from ullage.explaining.analysis.explain import explain
from ullage.recorded.snapshot.snapshot import load_snapshot

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "snapshots"
BASE = 0x7F0000000000
MIB = 1 << 20


def event(action: str, size: int, at: int = BASE) -> dict[str, Any]:
    return {"action": action, "size": size, "addr": at, "stream": 0, "frames": [], "time_us": 1}


def freed(size: int, at: int) -> list[dict[str, Any]]:
    return [event("free_requested", size, at), event("free_completed", size, at)]


def snapshot(trace: list[dict[str, Any]], *blocks: tuple[int, str]) -> dict[str, Any]:
    found, at = [], BASE
    for size, state in blocks:
        found.append({"address": at, "size": size, "state": state, "frames": []})
        at += size
    segment = {"device": 0, "address": BASE, "total_size": at - BASE, "segment_type": "large", "blocks": found}
    return {"segments": [segment] if blocks else [], "device_traces": [trace], "allocator_settings": {}}


def test_a_rest_that_is_too_small_to_be_split_off_counts() -> None:
    trace = [event("segment_alloc", 20 * MIB), event("alloc", 19 * MIB + 1), *freed(19 * MIB + 1, BASE)]
    found = cards_of(snapshot(trace, (20 * MIB, "inactive")))[0]
    assert (found.least_peak_bytes, found.most_peak_bytes) == (20 * MIB, 20 * MIB)
    assert found.peak_reserved_bytes == 20 * MIB
    assert found.allocated_bytes == 0


def test_the_size_of_a_block_of_before_is_known_up_to_its_rest() -> None:
    found = cards_of(snapshot(freed(19 * MIB, BASE), (20 * MIB, "inactive")))[0]
    assert (found.least_peak_bytes, found.most_peak_bytes) == (19 * MIB, 20 * MIB)


def test_what_is_given_back_was_reserved() -> None:
    found = cards_of(snapshot([event("segment_free", 2 * MIB)]))[0]
    assert found.peak_reserved_bytes == 2 * MIB
    assert found.reserved_bytes == 0


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pickle.gz")), ids=lambda path: path.name.split(".")[0])
def test_the_peaks_of_both_readings_are_equal(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.pickle"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    evidence = explain(load_snapshot(path).devices[0]).evidence
    found = cards_of(read(plain))[0]
    if found.failed_bytes:  # ullage's figures are then those at the failure
        assert found.most_peak_bytes >= evidence["allocated_bytes"]
        return
    assert found.least_peak_bytes <= evidence["peak_allocated_bytes"] <= found.most_peak_bytes
    assert found.peak_reserved_bytes == evidence["peak_reserved_bytes"]


def test_a_file_that_names_a_class_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pickle"
    bad.write_bytes(pickle.dumps(Path))
    with pytest.raises(pickle.UnpicklingError, match="it is no plain data"):
        read(bad)


def test_the_list_has_files_and_expectations() -> None:
    found = published()
    assert len(found) >= 150
    assert len({one.repository for one in found}) >= 37
    expected = [one.expected for one in found if one.expected is not None]
    assert len(expected) >= 40
    assert all(one["why"] and "leads" in one and one["cause"] for one in expected)
    assert len({(one.repository, one.blob) for one in found}) == len(found)


def test_the_target_fetches_explains_and_writes(tmp_path: Path) -> None:
    """With a repository of ours in place of GitHub."""
    there = tmp_path / "mirrors" / "somebody+something"
    there.mkdir(parents=True)
    content = gzip.decompress((DATA / "normal.pickle.gz").read_bytes())
    (there / "run.pickle").write_bytes(content)
    (there / "large.pickle").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "a run"]):
        subprocess.run(["git", "-C", str(there), *command], check=True)
    commit = subprocess.run(
        ["git", "-C", str(there), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    listed = tmp_path / "list.toml"
    entry = f'[[snapshots]]\nrepository = "somebody/something"\ncommit = "{commit}"\nblob = "{blob}"\n'
    listed.write_text(
        f'{entry}path = "run.pickle"\nexpected.cause = "truly_full"\nexpected.leads = ""\nexpected.why = "a guess"\n\n'
        f'{entry}path = "large.pickle"\n'
    )
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.snapshots.run", str(tmp_path / "kept"), "--list", str(listed)]
    command += ["--from", f"{there.parent}/{{owner}}+{{name}}", "--write", str(page)]
    ended = client.run(command, cwd=ROOT)
    assert ended.returncode == 1, ended.stderr
    text = page.read_text()
    assert "| files that could be fetched, of all that were found | 1 of 2 |" in text
    assert "| peak allocated, to the byte | 1 of 1 |" in text
    assert "| headings as expected | 0 of 1 |" in text
    assert "did_not_fail and not truly_full" in text
    assert "git LFS: only its pointer is there" in text
