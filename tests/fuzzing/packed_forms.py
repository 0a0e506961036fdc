"""Snapshots and logs in the forms in which people pass them on, and random changes to each form."""

import base64
import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.fuzzing.mutation import change_value, damage_bytes

Change = Callable[[bytes, random.Random], bytes]
_NAMES: Final = (
    "", "/", "../../x.pickle", "/etc/x", "a\nb", "\x1b[31mred", "\u202ex", "__MACOSX/._x", ".DS_Store", "a/.DS_Store",
    "run/", "run/data.pkl", "other/data.pkl", "data.pkl", "n" * 60_000, "[bold]", "<script>", "x" + "\\" * 300,
)  # fmt: skip
_HOWS: Final = (*(zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) * 5, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_SEVERAL: Final = (*(0,) * 9, 1, 2, 300)
_BEGINS: Final = b'"base64": "'


def _zipped(files: Sequence[tuple[str, bytes]], how: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", how) as archive:
        warnings.simplefilter("ignore")  # of two files with one name
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content, how)
        archive.comment = comment
    return made.getvalue()


def archives(contents: Sequence[bytes]) -> list[bytes]:
    """Return packed files: zip archives of each kind, what torch.save writes, gzip."""
    kinds: tuple[Callable[[bytes], bytes], ...] = (
        lambda content: _zipped([("run/", b""), ("run/oom.pickle", content)]),
        lambda content: _zipped([("x", content)], zipfile.ZIP_STORED),
        lambda content: _zipped([("a.pickle.gz", gzip.compress(content, 1))]),
        lambda content: _zipped([("a", content), ("__MACOSX/._a", b"\0"), (".DS_Store", b"\0")]),
        lambda content: _zipped([("oom/data.pkl", content), ("oom/version", b"3\n")], zipfile.ZIP_STORED),
        lambda content: gzip.compress(content, 1),
        lambda content: gzip.compress(_zipped([("a", content)]), 1),
        lambda content: _zipped([("tr\u00e4in/", b""), ("tr\u00e4in/\u8bb0\u5f55.pickle", content)]),
        lambda content: gzip.compress(content[:100], 1) + gzip.compress(content[100:], 1),
        lambda content: _zipped([("a.zip", _zipped([("b.pickle", content)]))]),
        _tarred,
        lambda content: gzip.compress(_tarred(content), 1),
        bz2.compress,
        lambda content: lzma.compress(content, preset=0),
    )
    return [kinds[number % len(kinds)](content) for number, content in enumerate([*contents, *contents])]


def change_archive(data: bytes, chance: random.Random, change_content: Change) -> bytes:
    """Change the bytes of a packed file, or what is packed in it, its names, and how it is packed."""
    if chance.random() < 0.25:
        return _damaged_at_an_end(data, chance)
    if not data.startswith((b"\x1f\x8b", b"PK")):  # only the first bytes of other archives are read
        return damage_bytes(data, chance)
    if data.startswith(b"\x1f\x8b"):
        return gzip.compress(change_archive_or_content(gzip.decompress(data), chance, change_content), 1)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = [(info.filename, archive.read(info)) for info in archive.infolist()]
    if chance.random() < 0.6:
        files = [(name, change_archive_or_content(content, chance, change_content)) for name, content in files]
    for _ in range(chance.choice(_SEVERAL)):
        content = chance.choice((b"", b"x", chance.choice(files)[1][:1000]))
        files.insert(chance.randrange(len(files) + 1), (chance.choice(_NAMES), content))
    if chance.random() < 0.15:
        at = chance.randrange(len(files))
        files[at] = chance.choice(_NAMES), files[at][1]
    packed = bytearray(_zipped(files, chance.choice(_HOWS), b"x" * chance.choice((0, 0, 0, 9, 65_535))))
    if chance.random() < 0.1:  # flags and methods as its directory has them: encrypted, unknown
        at = packed.rindex(b"PK\x01\x02") + chance.choice((8, 10))
        packed[at] ^= 1 << chance.randrange(8)
    if chance.random() < 0.1:  # a name that says that it is UTF-8, in its directory, at the file, or in both
        for at, flags, name in [(packed.rindex(b"PK\x01\x02"), 9, 46), (packed.index(b"PK\x03\x04"), 7, 30)]:
            if chance.random() < 0.7:
                packed[at + flags] |= 8
                packed[at + name : at + name + 1] = chance.choice((b"\xff", b"\xc3", b"\xed", b"\0"))
    return bytes(packed)


def _tarred(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo("run/oom.pickle")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def change_archive_or_content(content: bytes, chance: random.Random, change_content: Change) -> bytes:
    """Change what was packed, which may be packed once more."""
    if content.startswith((b"PK\x03\x04", b"\x1f\x8b")):
        return change_archive(content, chance, change_content)
    is_other = len(content) <= 10 or content[257:262] == b"ustar"
    return damage_bytes(content, chance) if is_other else change_content(content, chance)


def _damaged_at_an_end(data: bytes, chance: random.Random) -> bytes:
    """Change bytes where they mean something: the first header, or the directory at the end."""
    size = chance.choice((60, 400, len(data)))
    return (
        damage_bytes(data[:size], chance) + data[size:]
        if chance.random() < 0.5
        else data[:-size] + damage_bytes(data[-size:], chance)
    )


def pages(contents: Sequence[bytes]) -> list[bytes]:
    """Return pages of PyTorch's viewer as torch.cuda._memory_viz writes them, with zeros behind each snapshot."""
    return [_page(content + b"\0" * (3 - len(content) % 3)) for content in contents]


def _page(content: bytes) -> bytes:
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(content).decode()}])
    return (
        '\n<!DOCTYPE html>\n<html>\n<head>\n</head>\n<body>\n<script type="module">\nimport {add_local_files} from '
        '"https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js"\n'
        f"const local_files = {files}\nadd_local_files(local_files, 'Active Memory Timeline')\n</script>\n</body>\n"
    ).encode()


def change_page(data: bytes, chance: random.Random, change_content: Change) -> bytes:
    """Change the snapshot in a page, or the page around it."""
    begin = data.index(_BEGINS) + len(_BEGINS)
    end = data.index(b'"', begin)
    kind = chance.random()
    if kind < 0.5:
        content = base64.b64decode(data[begin:end]).rstrip(b"\0")
        changed = change_content(content + b"." * (not content.endswith(b".")), chance)
        return data[:begin] + base64.b64encode(changed) + data[end:]
    if kind < 0.7:
        at = chance.randrange(begin, end)
        return (
            data[:at] + chance.choice((b"", b"=", b"%", b"\0", b"\n", b"-_", b'"', b"\xff", b"====")) + data[at + 1 :]
        )
    if kind < 0.8:
        return data[: chance.randrange(len(data))]
    return damage_bytes(data[:begin], chance) + data[begin:]


def notebooks(texts: Sequence[bytes]) -> list[bytes]:
    """Return saved notebooks whose cells have printed these texts, each in another of the ways there are."""
    found = []
    for number, text in enumerate(texts):
        printed = text.decode()
        outputs: tuple[dict[str, Any], ...] = (
            {"output_type": "error", "ename": "E", "evalue": printed, "traceback": printed.splitlines()},
            {"output_type": "error", "ename": "E", "evalue": printed, "traceback": []},
            {"output_type": "stream", "name": "stderr", "text": printed.splitlines(keepends=True)},
            {"output_type": "stream", "name": "stdout", "text": printed},
            {"output_type": "execute_result", "metadata": {}, "data": {"text/plain": [printed]}},
        )
        cell = {"cell_type": "code", "metadata": {}, "source": ["x"], "outputs": [outputs[number % len(outputs)]]}
        text_cell = {"cell_type": "markdown", "metadata": {}, "source": ["# x"]}
        whole = {"cells": [text_cell, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        found.append(json.dumps(whole, indent=number % 2 or None).encode())
    return found


def change_notebook(data: bytes, chance: random.Random, change_content: Change) -> bytes:
    """Change a notebook's structure, what it has printed, or its bytes."""
    kind = chance.random()
    if kind < 0.2:
        return damage_bytes(data, chance)
    if kind < 0.6:
        return json.dumps(change_value(json.loads(data), chance), default=str).encode()
    return change_content(data, chance)
