"""Archives that are damaged at any place: each is read, or refused in a short sentence of ours.

Python's own errors quote bytes of the archive, or end a command with a traceback.
"""

import bz2
import gzip
import io
import lzma
import pickle
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recorded.snapshot.test_other_forms import ERROR, tarred, zipped
from tests.rotation import SLOW
from ullage.api.input import input_of, load_recorded, pieces_of
from ullage.base.errors import UsageError

SMALL = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 512, "size": 512, "stream": 0}]]})
LONGEST_SENTENCE = 330
"""The longest sentence, in characters, without the path. It names three files of an archive."""
PYTHONS_WORDS = re.compile(
    r"codec|can't decode|start byte|magic|header|CRC|Error|-?\b3\b while|b'|0x[0-9a-f]|unpack requires|stored block"
    r"|distance|Corrupt|Compressed file|central directory|offset|seek|disk|charmap|surrogate|embedded null|not in list"
)


def _zip_named(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


def _tarred_as(how: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{how}") as archive:
        info = tarfile.TarInfo("run/\u00f6.pickle")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "zip": lambda content: _zip_named("tr\u00e4in.log", content),
    "zip, stored": lambda content: zipped(("a.log", content), how=zipfile.ZIP_STORED),
    "zip in a folder": lambda content: zipped(("\u8bb0\u5f55/", b""), ("\u8bb0\u5f55/a", content)),
    "zip of two files": lambda content: zipped(("a\u00df", content), ("b\u00df", content)),
    "torch.save": lambda content: zipped(("oom/data.pkl", content), ("oom/version", b"3\n"), how=zipfile.ZIP_STORED),
    "zip of gzip": lambda content: zipped(("a.gz", gzip.compress(content, mtime=0))),
    "zip of zip": lambda content: zipped(("a.zip", _zip_named("\u00e9", content))),
    "gzip": lambda content: gzip.compress(content, mtime=0),
    "gzip in two members": lambda content: gzip.compress(content[:9], mtime=0) + gzip.compress(content[9:], mtime=0),
    "gzip of zip": lambda content: gzip.compress(_zip_named("\u00e9", content), mtime=0),
    "gzip of gzip": lambda content: gzip.compress(gzip.compress(content, mtime=0), mtime=0),
    "gzip, three times": lambda content: gzip.compress(ARCHIVES["gzip of gzip"](content), mtime=0),
    "tar": lambda content: _tarred_as("", content),
    "tar, gzip": lambda content: _tarred_as("gz", content),
    "tar, xz": lambda content: _tarred_as("xz", content),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": lambda content: b"\x28\xb5\x2f\xfd" + content,  # its first bytes are all that is read
    "zip of xz": lambda content: zipped(("a.xz", lzma.compress(content))),
    "gzip of zstd": lambda content: gzip.compress(b"\x28\xb5\x2f\xfd" + content, mtime=0),
}


def _damaged(whole: bytes) -> Iterator[bytes]:
    chance = random.Random(len(whole))
    stride = max(1, len(whole) // (300 if SLOW else 12))
    for at in range(chance.randrange(stride), len(whole), stride):
        for changed in (b"\xff", b"\x00", bytes([whole[at] ^ 1 << chance.randrange(8)]), b"\xff\xff\xff\xff"):
            yield whole[:at] + changed + whole[at + len(changed) :]
        yield whole[:at]
        yield whole[:at] + whole[at + 1 :]


def _refusals(data: bytes, path: Path) -> Iterator[str]:
    path.write_bytes(data)
    for read in (input_of, load_recorded, lambda file: list(pieces_of(file, lambda text: None))):
        try:
            read(path)
        except UsageError as error:
            yield str(error)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("content", [SMALL, ERROR.encode()], ids=["snapshot", "log"])
@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_damaged_archive_is_refused_in_a_short_sentence_of_ours(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in _damaged(ARCHIVES[kind](content)):
        for said in _refusals(data, path):
            rest = said.replace(str(path), "")
            assert len(rest) <= LONGEST_SENTENCE, said
            assert said.isprintable(), said
            assert not PYTHONS_WORDS.search(re.sub(r"'[^']*'", "", rest)), (said, data[:200])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_zip_named("tr\u00e4in.log", SMALL).replace("\u00e4".encode(), b"\xff\xff"), "its zip archive is damaged"),
        (_zip_named("a" * 400, SMALL).replace(b"a" * 400, b"\xff" * 400, 1), "its zip archive is damaged"),
        (_zip_named("a", SMALL)[:-40], "its zip archive is damaged"),
        (gzip.compress(SMALL, mtime=0)[:-5], "the end of its gzip data is missing"),
        (gzip.compress(SMALL, mtime=0)[:-8] + bytes(8), "its gzip data is damaged"),
        (zipped(("a.gz", gzip.compress(SMALL, mtime=0)[:-5])), "the end of its gzip data is missing"),
        (tarred("xz"), "it is compressed by xz; unpack it"),
    ],
)
def test_the_sentence_names_what_is_damaged(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(UsageError) as raised:
        load_recorded(path)
    assert said in str(raised.value)
