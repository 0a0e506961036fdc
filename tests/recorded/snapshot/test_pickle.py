"""A file is data: what is no plain data is refused in one sentence, whatever is in it, and nothing of it is run."""

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.units import MIB
from ullage.recorded.snapshot._pickle import PickleError, read
from ullage.recorded.snapshot.file import memory_bytes
from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
SAME = {"device": 0}
ODD = {"action": "free_requested", "addr": -1, "size": 512}
SHARED = [{"size": 1}]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
    max_leaves=40,
)


@given(PLAIN, st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    try:
        found = read(pickle.dumps(value, protocol))["root"]
    except UnicodeEncodeError:
        return  # a text that is none
    if isinstance(value, str) and any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        return
    assert _without_surrogates(found) == _without_surrogates(value)


def _without_surrogates(value: Any) -> Any:
    return repr(value).encode("utf-8", "replace").decode() if "\\ud" in ascii(value) else value


class Evil:
    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.touched}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_program_is_refused_and_named(tmp_path: Path, protocol: int) -> None:
    path, touched = tmp_path / "evil.pickle", tmp_path / "was-here"
    path.write_bytes(pickle.dumps({"segments": [Evil(touched)], "device_traces": []}, protocol))
    with pytest.raises(SnapshotError, match=r"it refers to (posix|nt)\.system, which a snapshot never does"):
        load_snapshot(path)
    assert not touched.exists()
    pickle.loads(path.read_bytes())
    assert touched.exists(), "this file would have run something"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty; expected a file written by torch.cuda.memory._dump_snapshot()"),
        (b"\x80", "it ends in the middle of a value at byte 1"),
        (b"\x80\x04", "it ends before it is complete at byte 2"),
        (b"cposix\x1b[2J\nsys\xfftem\n.", "it refers to posix?[2J.sys?tem, which a snapshot never does"),
        (b"PK\x03\x04" + b"x" * 99, "its zip archive is damaged; copy it again"),
        (b"x" * 257 + b"ustar\x0000" + b"x" * 300, "is not a snapshot: it is a tar archive; unpack it"),
        (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; unpack it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not the file itself"),
        (b"SQLite format 3\x00", "it is an SQLite database"),
        (b'{"loss": []}', "it is JSON"),
        (b"<!doctype html>", "it is an HTML page"),
        (gzip.compress(b"PK\x03\x04", mtime=0), "its zip archive is damaged; copy it again"),
        (b".", "it does not end with exactly one value"),
        (b"hello", "it refers to a value that was never stored"),
        (b"\x80\x05}.", "is not a snapshot: it has neither segments nor device_traces"),
        (b"\x80\x09N.", "a pickle protocol newer than 5"),
        (b"\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\x7f", "longer than the file"),
        (b"\x80\x05]\x94h\x00a.", "cannot be read as a snapshot"),  # a list inside itself
        (b"\x80\x05(((((.", "it does not end with exactly one value"),
        (b"\x80\x05}r\xff\xff\xff\x7f.", "under a number that is too large"),
        (b"\x80\x05" + b"]" * 5000 + b"a" * 4999 + b".", "nested deeper than a snapshot can be"),
        (pickle.dumps({"segments": 7}), "cannot be read as a snapshot"),
        (pickle.dumps({"segments": [7]}), "cannot be read as a snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[1, 2]]}), "cannot be read as a snapshot"),
        (pickle.dumps([{"blocks": "x"}]), "cannot be read as a snapshot"),
        (pickle.dumps([{"device": 1 << 40}]), "a segment is on device 1099511627776; expected 0 to 1023"),
        (pickle.dumps([{"device": -1}]), "a segment is on device -1; expected 0 to 1023"),
        (pickle.dumps([{"address": 0, "total_size": -512}]), "a segment of -512 bytes at 0x0 is impossible"),
        (pickle.dumps([{"address": 0, "total_size": 1 << 62}]), "a segment of 4611686018427387904 bytes"),
        (pickle.dumps([{"total_size": 4, "blocks": [{"size": -4}]}]), "a block of -4 bytes at 0x0 is impossible"),
        (
            pickle.dumps([{"total_size": 50 << 20, "blocks": [{"size": 512}, {"size": 512}]}]),
            "the segment at 0x0 has 52,428,800 bytes, but its blocks have 1,024 of them together",
        ),
        (pickle.dumps([SAME, SAME]), "it refers to the same segment or the same blocks twice"),
        (
            pickle.dumps([{"blocks": SHARED}, {"blocks": SHARED}]),
            "it refers to the same segment or the same blocks twice",
        ),
        (
            pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 5, "size": 1.5, "stream": 0}]]}),
            "it has an entry with a fraction where PyTorch writes a whole number",
        ),
        (
            pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]}),
            "entry 0 of device 0, alloc, has the size -5, which is impossible",
        ),
        (
            pickle.dumps({"device_traces": [[{"action": "oom", "device_free": 0, "size": -5}, ODD]]}),
            "entry 1 of device 0, free_requested, has the address -1, which is impossible",
        ),
        (
            pickle.dumps({"device_traces": [[{"action": "oom", "device_free": -1, "size": 5}]]}),
            "entry 0 of device 0, oom, has the free memory -1, which is impossible",
        ),
        (pickle.dumps({"a": bytearray(3)}, 5), "a kind of value that never occurs in a snapshot"),
        (pickle.dumps({"a": {1, 2}}), "a kind of value that never occurs in a snapshot"),
        (pickle.dumps({"segments": [], "x": 1 << 80}), "an integer that is too large for a snapshot"),
        (
            gzip.compress(b"\x80\x05N.", mtime=0)[:-9],
            "cannot be read: it is incomplete: the end of its gzip data is missing; copy it again",
        ),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_what_is_no_snapshot_is_told_in_one_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(path)
    assert said in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read: No such file"):
        load_snapshot(tmp_path / "none.pickle")


@pytest.mark.parametrize("name", ["frames", "pool_id"])
def test_a_list_that_is_named_often_is_looked_at_once(tmp_path: Path, name: str) -> None:
    """What grows with the square of a file's size would be a hang."""
    count = 60_000
    frames = [{"name": "f", "filename": "f", "line": line} for line in range(count)]
    shared = {"frames": [*frames, 7], "pool_id": [0] * count}[name]  # no stack, because of its last; no pair
    trace = [{"action": "alloc", "addr": address, "size": 512, name: shared} for address in range(count)]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [trace]}))
    began = time.process_time()
    assert len(load_snapshot(path).devices[0]) == count
    assert time.process_time() - began < 3


def test_a_small_file_that_unzips_to_a_large_one(tmp_path: Path) -> None:
    """What does not fit, here under a limit, is told."""
    path = tmp_path / "bomb.pickle.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24), 9, mtime=0) * 32)  # 512 MiB in 512 KiB
    assert "decompresses to more than" in _told_under_limit(path)


def test_a_file_whose_values_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "wide.pickle"
    path.write_bytes(b"\x80\x04(" + b"N" * (20 << 20) + b"t.")  # 20 MiB, of which 320 MiB become
    assert "is larger than the memory this process may use" in _told_under_limit(path)


def _told_under_limit(path: Path) -> str:
    """What is said of a file by a process that may take 200 MiB more than it begins with."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot\n"
        "most = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() + (200 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try: load_snapshot(Path(sys.argv[1]))\n"
        "except SnapshotError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr[-500:]
    return done.stdout


def test_the_memory_that_may_be_used_is_the_smallest_that_is_said(tmp_path: Path) -> None:
    """A container's limit stands in one of two files; it may say that there is none."""
    (tmp_path / "none").write_text("max\n")
    (tmp_path / "some").write_text(f"{MIB}\n")
    (tmp_path / "huge").write_text("9223372036854771712\n")
    of = [memory_bytes([tmp_path / name]) for name in ("not there", "none", "huge", "some")]
    assert of[0] == of[1] == of[2] > MIB == of[3]


def test_a_device_is_refused_unread() -> None:
    """/dev/zero has no end."""
    with pytest.raises(SnapshotError, match="/dev/zero cannot be read: it is a device; expected a regular file"):
        load_snapshot(Path("/dev/zero"))


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "sparse.pickle"
    path.touch()
    os.truncate(path, 1 << 42)
    with pytest.raises(SnapshotError, match=r"is more than .*, half of the memory this process may use"):
        load_snapshot(path)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """It has no size that could be asked for; zipped or not."""
    zipped, plain = DATA / "eval_with_grad.pickle.gz", tmp_path / "plain.pickle"
    plain.write_bytes(gzip.decompress(zipped.read_bytes()))
    for path in (zipped, plain):
        reads, writes = os.pipe()
        with subprocess.Popen(["cat", str(path)], stdout=writes):
            os.close(writes)
            found = load_snapshot(Path(f"/dev/fd/{reads}"))
            os.close(reads)
        assert len(found.devices[0]) == len(load_snapshot(path).devices[0])


def test_numbers_of_kept_values_stay_below_the_file_size() -> None:
    """Each number takes room up to it: 60 KB could take gigabytes."""
    jumps = b"".join(b"r" + struct.pack("<I", 59_000 * (step + 1)) for step in range(12_000))
    with pytest.raises(
        PickleError, match="it stores a value under a number that is too large at byte 13"
    ):  # 59,000 itself may be
        read(b"\x80\x04N" + jumps + b".")
    assert read(b"\x80\x04Nq\x06h\x06\x86.")["root"] == [None, None]  # not all numbers need be given


def test_a_dictionary_that_grows_while_it_is_named_is_looked_at_once() -> None:
    """Key by key, and named after each: the square of a file's size would be a hang."""
    grown = b"\x80\x04]q\x01}q\x00" + b"K\x01K\x01s" * 300_000 + b"0"
    began = time.process_time()
    assert len(read(grown + b"h\x00K\x01K\x01sa" * 300_000 + b".")["root"]) == 300_000
    assert time.process_time() - began < 3


ENTRY = {"action": "alloc", "addr": 0x7F0000000000, "size": 512, "time_us": 1}


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ([[ENTRY] for _ in range(1025)], "it has traces of 1025 devices; expected at most 1024"),
        ([[ENTRY] * 500_000] * 60, "it refers to the same entry twice in its traces"),
    ],
)
def test_devices_cost_what_is_in_the_file(tmp_path: Path, traces: list[Any], said: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": traces}))
    with pytest.raises(SnapshotError, match=said):
        load_snapshot(path)


def test_an_empty_trace_may_stand_for_many_devices(tmp_path: Path) -> None:
    path, empty = tmp_path / "snapshot.pickle", list[Any]()
    path.write_bytes(pickle.dumps({"device_traces": [empty, empty, [ENTRY]]}))
    assert list(load_snapshot(path).devices) == [2]


def test_many_devices_and_many_texts_do_not_multiply(tmp_path: Path) -> None:
    """Nor does a long name that many ranges have."""
    shared = "n" * 100_000
    ranges = [{"name": f"n{step}", "stage": "S", "device": 0, "time_us": 1} for step in range(100_000)]
    ranges += [{"name": shared, "stage": "S", "device": 0, "time_us": 1} for _ in range(100_000)]
    path, taken = tmp_path / "snapshot.pickle", []
    for count in (64, 1024):
        traces = [[ENTRY | {"user_metadata": f"m{device}"}] for device in range(count)]
        path.write_bytes(pickle.dumps({"device_traces": traces, "external_annotations": ranges}))
        began = time.process_time()
        devices = load_snapshot(path).devices
        taken.append(time.process_time() - began)
    assert taken[1] < 0.5 + 4 * taken[0]  # and not sixteen times as long
    assert [one.labels.texts[one.labels.metadata[0]] for one in devices.values()] == [f"m{n}" for n in range(1024)]
    assert len(devices[0].annotations) == 200_000


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    """Letters that are not drawn are replaced."""
    frame = {"name": "f\x1b[2J", "filename": "a\nb\x9b31m.py", "line": 3}
    entry = {"action": "alloc", "addr": 0, "size": 512, "frames": [frame]}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[entry]]}))
    table = load_snapshot(path).devices[0].stacks.table
    assert (table[0].name, table[0].file) == ("f\ufffd[2J", "a\ufffdb\ufffd31m.py")


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from ullage.recorded.snapshot.snapshot import load_snapshot;"
        "from ullage.recorded.rebuild import program_of;"
        "from ullage.recorded.allocator.replay import replay, ReplayDevice;"
        f"history = load_snapshot(Path({str(DATA / 'oom.pickle.gz')!r})).devices[0]; made = program_of(history);"
        "replay(made.program, made.settings, ReplayDevice(total_bytes=made.room_bytes)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_pickled_by_every_protocol(tmp_path: Path) -> None:
    """PyTorch writes with the interpreter's default; tools rewrite with others."""
    plain = pickle.loads(gzip.decompress((DATA / "eval_with_grad.pickle.gz").read_bytes()))
    path = tmp_path / "snapshot.pickle"
    lengths = set()
    for protocol in range(6):
        stream = io.BytesIO()
        pickle.dump(plain, stream, protocol)
        path.write_bytes(stream.getvalue())
        history = load_snapshot(path).devices[0]
        lengths.add((len(history), history.reserved_bytes, len(history.stacks.table)))
    assert len(lengths) == 1
    with pytest.raises(PickleError):
        read(b"\x80\x05")
