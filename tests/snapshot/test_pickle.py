"""A file is data: what is no plain data is refused in one sentence, whatever is in it, and nothing of it is run."""

import gzip
import io
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.snapshot._pickle import PickleError, read
from ullage.snapshot.snapshot import SnapshotError, load_snapshot

DATA = Path(__file__).parent / "data"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
    max_leaves=40,
)


@given(PLAIN, st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    if protocol == 0:  # its texts are escaped, which no snapshot is
        value = str(value).isascii() and 7
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
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/ullage-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_program_is_refused_and_named(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [Evil()], "device_traces": []}, protocol))
    with pytest.raises(SnapshotError, match=r"it asks for (posix|nt)\.system, which a snapshot never does"):
        load_snapshot(path)
    assert not Path("/tmp/ullage-was-here").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it ends before it is complete at byte 0"),
        (b".", "it does not leave one value"),
        (b"hello", "it names a value that was never kept"),
        (b"\x80\x05}.", "is no snapshot: it has neither segments nor device_traces"),
        (b"\x80\x09N.", "newer pickle protocol"),
        (b"\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\x7f", "longer than the file"),
        (b"\x80\x05]\x94h\x00a.", "is no snapshot"),  # a list inside itself
        (b"\x80\x05(((((.", "it does not leave one value"),
        (b"\x80\x05}r\xff\xff\xff\x7f.", "beyond all reason"),
        (b"\x80\x05" + b"]" * 5000 + b"a" * 4999 + b".", "nested deeper than any snapshot"),
        (pickle.dumps({"segments": 7}), "is no snapshot that can be read"),
        (pickle.dumps({"segments": [7]}), "is no snapshot that can be read"),
        (pickle.dumps({"segments": [], "device_traces": [[1, 2]]}), "is no snapshot that can be read"),
        (pickle.dumps([{"blocks": "x"}]), "is no snapshot that can be read"),
        (pickle.dumps({"a": bytearray(3)}, 5), "no snapshot has"),
        (pickle.dumps({"a": {1, 2}}), "no snapshot has"),
        (pickle.dumps({"segments": [], "x": 1 << 80}), "a whole number that no snapshot has"),
        (gzip.compress(b"\x80\x05N.", mtime=0)[:-9], "cannot be read"),
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


FUZZ = """
import random, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from ullage.snapshot.snapshot import SnapshotError, load_snapshot
seed, count, base, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).read_bytes(), Path(sys.argv[4])
chance = random.Random(seed)
past = 0
for number in range(count):
    data = bytearray(base)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
        at = chance.randrange(2 if chance.random() < 0.8 else 0, len(data))
        match chance.randrange(6):
            case 0: data[at] = chance.randrange(256)
            case 1: data[at] ^= 1 << chance.randrange(8)
            case 2: del data[at : at + chance.randrange(1, 9)]
            case 3: data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4: data[at:at] = data[chance.randrange(len(data)):][: chance.randrange(1, 60)]
            case 5: data[at : at + 4] = chance.choice((b"\\xff\\xff\\xff\\x7f", b"\\xff" * 4, b"\\0" * 4))
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    began = time.monotonic()
    try:
        load_snapshot(path)
        past += 1
    except SnapshotError as error:
        text = str(error)
        assert "\\n" not in text and len(text) < 500, text
        past += "at byte" not in text or int(text.split("at byte ")[1].split()[0].rstrip(")")) > 20
    assert time.monotonic() - began < 5, number
print(past)
"""


def test_damaged_files_end_in_one_sentence(tmp_path: Path) -> None:
    """Under a limit of 2 GiB: no crash, no hang, no code run; new seeds at every run."""
    count = 10_000 if os.environ.get("ULLAGE_SLOW") else 1_500
    seed = random.randrange(1 << 32)
    base = tmp_path / "base.pickle"
    base.write_bytes(gzip.decompress((DATA / "eval_with_grad.pickle.gz").read_bytes()))
    line = [sys.executable, "-c", FUZZ, str(seed), str(count), str(base), str(tmp_path / "damaged.pickle")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (seed, done.returncode, done.stderr[-2000:])
    assert int(done.stdout) > count / 2, "at least half get past the header"


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from ullage.snapshot.snapshot import load_snapshot;"
        "from ullage.rebuild import program_of; from ullage.allocator.replay import replay, Device;"
        f"history = load_snapshot(Path({str(DATA / 'oom.pickle.gz')!r})).devices[0]; made = program_of(history);"
        "replay(made.program, made.settings, Device(total_bytes=made.room_bytes)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_pickled_by_every_protocol(tmp_path: Path) -> None:
    """PyTorch writes with the interpreter's default; tools rewrite with others."""
    plain = pickle.loads(gzip.decompress((DATA / "eval_with_grad.pickle.gz").read_bytes()))
    path = tmp_path / "snapshot.pickle"
    lengths = set()
    for protocol in range(1, 6):
        stream = io.BytesIO()
        pickle.dump(plain, stream, protocol)
        path.write_bytes(stream.getvalue())
        history = load_snapshot(path).devices[0]
        lengths.add((len(history), history.reserved_bytes, len(history.stacks.table)))
    assert len(lengths) == 1
    with pytest.raises(PickleError):
        read(b"\x80\x05")
