"""Which versions of torch can have written a snapshot, by the keys that wheels of each version wrote."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from ullage.explaining.analysis.explain import explain
from ullage.recorded.release import Release
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[1] / "snapshots"
ROOT = {"segments", "device_traces", "allocator_settings", "external_annotations"}
ENTRY = {"action", "addr", "compile_context", "frames", "size", "stream", "time_us", "user_metadata"}
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "expandable_segments", "roundup_power2_divisions"}
NEWER = SETTINGS | {"max_round_threshold", "max_cached_size"}
HOST = ROOT | {"host_segments", "host_traces"}
# What the CUDA wheel of each version wrote for the same program.
WRITTEN = {
    "2.11.0": (ROOT, SETTINGS, ENTRY),
    "2.12.0": (ROOT, SETTINGS, ENTRY | {"pool_id"}),
    "2.13.0": (ROOT, NEWER, ENTRY | {"pool_id"}),
    "2.14.0": (HOST, NEWER, ENTRY | {"pool_id"}),
    "2.15.0": (HOST, NEWER, ENTRY | {"pool_id"}),
}


@pytest.mark.parametrize(
    ("version", "text", "usual"),
    [
        ("2.11.0", "2.11 or earlier", "2.11"),
        ("2.12.0", "2.12", "2.12"),
        ("2.13.0", "2.13", "2.13"),
        ("2.14.0", "2.14 or later", "2.15"),
        ("2.15.0", "2.14 or later", "2.15"),
    ],
)
def test_the_keys_of_each_version(version: str, text: str, usual: str) -> None:
    root, settings, entries = WRITTEN[version]
    release = Release.of(root=root, settings=settings, entries=entries)
    assert release.text == text
    assert release.usual == usual


def test_a_lower_limit_excludes_older_allocators_and_an_upper_limit_only_puts_them_last() -> None:
    """A program may remove a key, but none adds one."""
    assert Release().candidates == ("2.11", "2.15", "2.12")
    assert Release(below="2.12").candidates == ("2.11", "2.15", "2.12")
    assert Release(least="2.12").candidates == ("2.15", "2.12")
    assert Release(least="2.12", below="2.13").candidates == ("2.12", "2.15")
    assert Release(least="2.13", below="2.14").candidates == ("2.13",)
    assert Release(least="2.14").candidates == ("2.15",)


def test_a_missing_key_of_an_older_version_does_not_contradict_a_newer_one() -> None:
    stripped = Release.of(root=HOST, entries=ENTRY)
    assert (stripped.least, stripped.below, stripped.text) == ("2.14", None, "2.14 or later")
    assert Release.of(root=ROOT, actions={"annotate"}).least == "2.14"
    assert Release.of(root=ROOT, entries=ENTRY | {"internal_metadata"}).least == "2.15"


def test_files_without_the_parts_show_nothing() -> None:
    assert Release.of() == Release()
    assert Release.of(root=(), settings={}, entries=()).text == ""


def test_the_report_says_what_the_keys_show() -> None:
    newest = load_snapshot(DATA / "cpp_stacks.pickle.gz").devices[0]
    notes = explain(newest).notes
    assert (
        "torch 2.15 is assumed; a snapshot does not record its version, and its keys are those of torch 2.14 or later "
        "(--torch-version)"
    ) in notes
    assert not any("what this version of ullage ignores" in note for note in notes)


def test_what_is_unknown_is_a_note_and_no_error(tmp_path: Path) -> None:
    content: dict[str, Any] = pickle.loads(gzip.decompress((DATA / "cpp_stacks.pickle.gz").read_bytes()))
    content["gravity"] = [1, {"a": 2}]
    content["segments"][0]["tier\n"] = 3
    content["segments"][0]["blocks"][0]["owner"] = "me"
    content["device_traces"][0][0]["origin"] = {"deep": [1]}
    content["device_traces"][0][0]["frames"][0]["column"] = 7
    content["device_traces"][0].append({**content["device_traces"][0][-1], "action": "teleport"})
    content["host_traces"][0]["numa"] = 0
    (tmp_path / "new.pickle").write_bytes(pickle.dumps(content))
    history = load_snapshot(tmp_path / "new.pickle").devices[0]
    assert set(history.unknown_keys) == {
        "gravity of the file",
        "tier� of segments",
        "owner of blocks",
        "origin of trace entries",
        "numa of trace entries",
        "column of stack frames",
        "the action teleport",
    }
    assert any("what this version of ullage ignores: gravity of the file" in note for note in explain(history).notes)
