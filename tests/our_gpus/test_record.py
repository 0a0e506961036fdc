"""A record survives everything that may happen to its file."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.our_gpus.record import ATTACHMENTS, RECORD, RecordError, Writer, packed, read_record

GPU = {
    "gpu": "a GPU", "total_memory_bytes": 1 << 34, "torch": "2.11.0", "driver": "580", "python": "3.12.3",
    "cudnn": 91900, "packages": {}, "emulated": None,
}  # fmt: skip


def written(folder: Path) -> Path:
    writer = Writer(folder)
    writer.gpu(GPU)
    writer.answer("truth/a", {"peak_bytes": 512, "attachments": {"snapshot": packed(b"data")}}, 1.5)
    writer.error("truth/b", "ValueError: no", "what was printed", 0.5)
    writer.answer("truth/c", {"peak_bytes": 1024}, 2.0)
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Answers, errors, seconds and attachments; from the folder as from its file."""
    folder = written(tmp_path)
    for path in (folder, folder / RECORD):
        record = read_record(path)
        assert record.gpu == GPU
        assert record.answers == {"truth/a": {"peak_bytes": 512}, "truth/c": {"peak_bytes": 1024}}
        assert record.errors == {"truth/b": "ValueError: no"}
        assert record.seconds["truth/a"] == 1.5
        assert gzip.decompress(record.attachments["truth/a", "snapshot"]) == b"data"


def test_a_compressed_record_is_read(tmp_path: Path) -> None:
    """What is committed is compressed, file by file."""
    folder = written(tmp_path)
    expected = read_record(folder)
    for name in (RECORD, ATTACHMENTS):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read_record(folder) == expected


def test_a_record_that_is_cut_anywhere_is_read_and_continued(tmp_path: Path) -> None:
    """After each number of bytes: every whole line counts, the cut one does not, and what follows is read."""
    whole = (written(tmp_path / "whole") / RECORD).read_bytes()
    folder = tmp_path / "cut"
    folder.mkdir()
    for length in range(len(whole)):
        data = whole[:length]
        (folder / RECORD).write_bytes(data)
        lines = data.count(b"\n")
        is_whole = whole[length : length + 1] == b"\n"  # the last line lacks its line feed alone
        if lines + is_whole:
            record = read_record(folder)
            assert len(record.answers) + len(record.errors) == lines + is_whole - 1
        else:
            with pytest.raises(RecordError, match="not a record of a GPU"):
                read_record(folder)
        writer = Writer(folder)
        if lines == 0:
            assert (folder / RECORD).read_bytes() == b""
            writer.gpu(GPU)
        writer.answer("truth/d", {"peak_bytes": 1}, 1.0)
        record = read_record(folder)
        assert record.gpu == GPU
        assert record.answers["truth/d"] == {"peak_bytes": 1}
        assert len(record.answers) + len(record.errors) == max(lines, 1)


def test_a_later_answer_replaces_an_error(tmp_path: Path) -> None:
    """A question that failed and is asked again has an answer, and no error."""
    folder = written(tmp_path)
    Writer(folder).answer("truth/b", {"peak_bytes": 2}, 1.0)
    record = read_record(folder)
    assert record.answers["truth/b"] == {"peak_bytes": 2}
    assert not record.errors


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "this is not a record of a GPU"),
        (b"[1, 2]\n", "expected a JSON object"),
        (b'{"format": 7, "gpu": {}}\n', "this is not a record of a GPU"),
        (b'{"format": 1, "gpu": "H100"}\n', "this is not a record of a GPU"),
        (json.dumps({"format": 1, "gpu": GPU}).encode() + b"\nnonsense\n{}\n", "line 2: this is not JSON"),
        (json.dumps({"format": 1, "gpu": GPU | {"gpu": "x" * 999}}).encode() + b"\n", "this is not a record of a GPU"),
        (json.dumps({"format": 1, "gpu": GPU | {"gpu": "\x1b[31m"}}).encode() + b"\n", "this is not a record of a GPU"),
        (json.dumps({"format": 1, "gpu": GPU | {"total_memory_bytes": 1.5}}).encode() + b"\n", "this is not a record"),
        (json.dumps({"format": True, "gpu": GPU}).encode() + b"\n", "this is not a record of a GPU"),
        (b"{}\n" * 20_000, "lines; a record has a few of each"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000 + b"\n", "this is not"),
        (b"[" * 100_000, "this is not"),
    ],
)
def test_what_is_not_a_record_is_refused_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    """The sentence names the file."""
    (tmp_path / RECORD).write_bytes(content)
    with pytest.raises(RecordError, match=said) as caught:
        read_record(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    """The sentence says how to make one."""
    with pytest.raises(RecordError, match="make gpu"):
        read_record(tmp_path / "nothing")
