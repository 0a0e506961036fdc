"""The core does what PyTorch's own allocator did, operation by operation; and the check can fail."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ullage.recorded.allocator.conformance import compare, main
from ullage.recorded.allocator.recorded import Sequence, read_sequences

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.jsonl.gz"))


def _names() -> Iterator[str]:
    """Yield the name of each sequence: its torch and its number, from the headers alone."""
    for path in CORPUS:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            headers = (json.loads(line) for line in lines if line.startswith('{"seq"'))
            yield from (_name(header) for header in headers)


def _name(header: dict[str, Any]) -> str:
    return f"{header['torch']}-{header['seq']}"


NAMES = list(_names())


@cache
def sequences() -> dict[str, Sequence]:
    """Read all sequences, by their names: seconds for a process that runs these tests, and nothing for the others."""
    return {_name(sequence.header): sequence for path in CORPUS for sequence in read_sequences(path)}


def test_every_sequence_has_a_test() -> None:
    assert list(sequences()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_the_recorded_one(name: str) -> None:
    """Address, driver calls in order, five statistics, out of memory, PyTorch's own assertions."""
    assert compare(sequences()[name]) is None


def write(path: Path, header: dict[str, Any], lines: list[dict[str, Any]]) -> Path:
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in [header, *lines]).encode()))
    return path


@pytest.mark.parametrize("field", ["r", "d", "s", "oom", "skip", "err"])
def test_one_tampered_line_is_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str) -> None:
    sequence = sequences()[NAMES[0]]
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
    for sequence in [sequences()[name] for name in NAMES[::9]]:
        bare = [{"o": line["o"]} for line in sequence.lines]
        assert main(["--emit", str(write(tmp_path / "bare.jsonl.gz", sequence.header, bare))]) == 0
        written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert written[0] == sequence.header
        assert written[1:] == sequence.lines


HEADER = {"seq": "a/0", "torch": "2.11.0", "conf": "", "total": 1 << 34, "base_used": 0, "policy": "bump"}
HUGE = "99999999999999999999999999"


def header(**changed: Any) -> str:
    return json.dumps(HEADER | changed)


def below(operation: Any) -> str:
    return header() + "\n" + json.dumps({"o": operation})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "contains no sequence"),
        ("{}", "line 1 of"),
        ("not json", "cannot be read as recorded sequences"),
        ("5", "line 1 of {} is 5; expected a JSON object"),
        ("null", "line 1 of {} is null; expected a JSON object"),
        ('"seq"', 'line 1 of {} is "seq"; expected a JSON object'),
        ('["seq"]', 'line 1 of {} is ["seq"]; expected a JSON object'),
        ("[" * 100_000, "line 1 of {} cannot be read"),
        ('{"seq":' + "9" * 5000 + "}", "line 1 of {} cannot be read"),
        ('{"seq": "a/0"}', "line 1 of {} is a damaged header: 'torch' is none; expected a text"),
        (header(total="x"), "'total' is \"x\"; expected a whole number of bytes"),
        (header(total=1.5), "'total' is 1.5; expected a whole number of bytes"),
        (header(total=0), "the sequence at line 1 of {} cannot be run"),
        (header(base_used=None), "'base_used' is null; expected a whole number of bytes"),
        (header(base_used=1 << 70), "'base_used' is 1180591620717411303424; expected a whole number of bytes"),
        (header(policy="up"), "'policy' is \"up\"; expected one of bump"),
        (header(torch="new"), "line 1 of {} is a damaged header: 'new' is not a version"),
        (header(conf="a:b:c"), "line 1 of {} is a damaged header: "),
        (below(5), "line 2 of {} is neither a header nor an operation"),
        (below(None), "line 2 of {} is neither a header nor an operation"),
        (below("w"), "line 2 of {} has 'w'; expected an operation"),
        (below("a x"), "line 2 of {} has 'a x'; expected an operation of a recorded sequence: an argument is missing"),
        (below("s a:b:c"), "line 2 of {} has 's a:b:c'"),
        *(
            (below(text), f"line 2 of {{}} has {text!r}; expected an operation of a recorded sequence: {HUGE} is out")
            for text in (
                f"a x {HUGE} 0",
                f"a x 512 {HUGE}",
                f"r x {HUGE}",
                f"x {HUGE}",
                f"X {HUGE}",
                f"h {HUGE}",
                f"p 0 {HUGE}",
                f"p 0 1 {HUGE}",
                f"q 0 {HUGE}",
                f"R 0 {HUGE}",
            )
        ),
        (below("a x -1 0"), "-1 is out of range"),
    ],
    ids=lambda text: text[-40:] if isinstance(text, str) else None,
)
def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    """Exit code 1 says that something diverges: what cannot be read is one sentence with its line, and 2."""
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    assert main([str(path)]) == 2
    told = capsys.readouterr().err
    assert said.replace("{}", str(path)) in told
    assert told.count("\n") == 1


def test_a_damaged_archive_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00garbage")
    assert main([str(path)]) == 2
    assert f"error: {path} cannot be read as recorded sequences after line 0" in capsys.readouterr().err


PROGRAM = [sys.executable, "-m", "ullage.recorded.allocator.conformance"]


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    """`--emit FILE | head -1` ends as by SIGPIPE, and says nothing."""
    long = tmp_path / "long.jsonl"
    long.write_text("\n".join([header(), *[json.dumps({"o": "e"})] * 20_000]))
    with subprocess.Popen(
        [*PROGRAM, "--emit", str(long)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(900) == 141


def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C while it waits for a file is 130."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with subprocess.Popen([*PROGRAM, str(pipe)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        with pipe.open("w"):  # opens when the other side does: main has begun
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "interrupted\n"
            assert process.wait(900) == 130
