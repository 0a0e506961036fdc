"""The core does what PyTorch's own allocator did, operation by operation; and the check can fail."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ullage.allocator.conformance import compare, main, read_sequences

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.jsonl.gz"))
SEQUENCES = [sequence for path in CORPUS for sequence in read_sequences(path)]


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda found: f"{found.header['torch']}-{found.header['seq']}")
def test_every_operation_is_the_recorded_one(sequence: Any) -> None:
    """Address, driver calls in order, five statistics, out of memory, PyTorch's own assertions."""
    assert compare(sequence) is None


def write(path: Path, header: dict[str, Any], lines: list[dict[str, Any]]) -> Path:
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in [header, *lines]).encode()))
    return path


@pytest.mark.parametrize("field", ["r", "d", "s", "oom", "skip", "err"])
def test_one_tampered_line_is_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str) -> None:
    sequence = SEQUENCES[0]
    lines = [dict(line) for line in sequence.lines]
    index = next(number for number, line in enumerate(lines) if number > 300 and line.get("r") and line.get("d"))
    lines[index] = (
        lines[index]
        | {
            "r": {"r": [lines[index]["r"][0], lines[index]["r"][1] + 512]},
            "d": {"d": [*lines[index]["d"], ["F", 0, 2097152]]},
            "s": {"s": [*lines[index]["s"][:4], lines[index]["s"][4] + 1]},
            "oom": {"oom": 1},
            "skip": {"skip": 1},
            "err": {"err": "no"},
        }[field]
    )
    assert main([str(write(tmp_path / "tampered.jsonl.gz", sequence.header, lines))]) == 1
    said = capsys.readouterr().out
    assert f"line {index} ({lines[index]['o']}), {field}: recorded" in said
    assert "1 sequences diverge" in said


def test_it_writes_the_lines_of_a_file_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sequence in SEQUENCES[::9]:
        bare = [{"o": line["o"]} for line in sequence.lines]
        assert main(["--emit", str(write(tmp_path / "bare.jsonl.gz", sequence.header, bare))]) == 0
        written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert written[0] == sequence.header
        assert written[1:] == sequence.lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no sequence"),
        ("{}", "line 1 of"),
        ('{"seq": "a/0"}', "is damaged: KeyError: 'torch'"),
        ("not json", "cannot be read as recorded sequences"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert said in capsys.readouterr().err
