"""What is said of a workspace where cuDNN cannot be asked."""

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ullage.base.units import KIB
from ullage.gpu.emulator.cudnn import table
from ullage.gpu.emulator.cudnn.table import ANY, COLUMNS, Estimate, TableError, classes_of, estimate
from ullage.gpu.emulator.cudnn.tree import Node, convolution_of, parse

OPERATIONS = {
    "forward": (10, 702, 703, 704, 705),
    "weights": (11, 714, 715, 716, 717),
    "input": (12, 708, 709, 710, 711),
}
FLAT = 64 * KIB  # on either side of every range
TABLES = sorted(table.FOLDER.glob("*.csv"))


def question(
    x: tuple[int, ...] = (32, 64, 56, 56),
    w: tuple[int, ...] = (128, 64, 3, 3),
    y: tuple[int, ...] = (32, 128, 56, 56),
    *,
    direction: str = "forward",
    kind: int = 0,
    stride: int = 1,
    channels_last: bool = False,
) -> tuple[Node, ...]:
    """A convolution as the emulated cuDNN asks about it."""
    operation, how, *places = OPERATIONS[direction]
    tensors = []
    for number, sizes in enumerate((x, w, y)):
        strides = ",".join(["1"] * len(sizes)) if channels_last else ",".join(["9"] * len(sizes))
        tensors.append(f"17 901:1:{kind} 902:3:{','.join(map(str, sizes))} 903:3:{strides} 906:3:{number}")
    ones = ",".join(["1"] * (len(x) - 2))
    convolution = f"1 102:3:{ones} 103:3:{','.join([str(stride)] * (len(x) - 2))} 104:3:{ones} 105:3:{ones}"
    w_at, x_at, y_at = places
    lines = [*tensors, convolution, f"{operation} {how}:15:3 {x_at}:15:0 {w_at}:15:1 {y_at}:15:2", "15 801:15:4"]
    return parse("\n".join([*lines, "4 200:8:0 201:15:5"]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of tables."""
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    yield tmp_path
    table._load.cache_clear()


def write(path: Path, *rows: str) -> None:
    """Write a table."""
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")


WIDE = "75,forward,2,none"


def test_a_workspace_is_a_share_of_the_bytes_of_input_weights_and_output(folder: Path) -> None:
    """Rounded so that what was measured stays within the range."""
    write(folder / "9.19.csv", f"{WIDE},fp32,first,3,odd,1,0.5,0.1,1.0001,9")
    found = estimate(question((1, 1, 3, 3), (1, 1, 3, 3), (1, 1, 3, 3)), version=91900, capability=75)
    assert found == Estimate(expected_bytes=54, low_bytes=0, high_bytes=109 + FLAT)  # of 27 numbers, 108 bytes


def test_the_narrowest_class_that_was_measured_counts(folder: Path) -> None:
    """The stride is left out first, then the places, then the kernel, then type and layout."""
    rows = [
        "fp32,first,3,many,1,5,5,5,9",
        "fp32,first,3,many,any,4,4,4,9",
        "fp32,first,3,any,any,3,3,3,9",
        "fp32,first,any,any,any,2,2,2,9",
        "any,any,any,any,any,1,1,1,9",
    ]
    for left in (5, 4, 3, 2, 1):
        write(folder / "9.19.csv", *(f"{WIDE},{row}" for row in rows[-left:]))
        table._load.cache_clear()
        nodes = question()
        found, convolution = estimate(nodes, version=91900, capability=75), convolution_of(nodes)
        assert found
        assert convolution
        assert found.expected_bytes == left * convolution.tensor_bytes


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (question(), "75,forward,2,none,fp32,first,3,many,1"),
        (question(kind=2, channels_last=True), "75,forward,2,none,half,last,3,many,1"),
        (question(kind=9, direction="weights"), "75,weights,2,none,half,first,3,many,1"),
        (
            question((8, 64, 1, 90), (64, 1, 1, 31), (8, 64, 1, 45), stride=2),
            "75,forward,1,depthwise,fp32,first,5,odd,2",
        ),
        (question((8, 64, 9, 9, 9), (32, 16, 1, 1, 1), (8, 32, 9, 9, 9)), "75,forward,3,grouped,fp32,first,1,odd,1"),
        (
            question((8, 64, 8, 8), (64, 32, 2, 2), (8, 32, 4, 4), direction="input"),
            "75,input,2,grouped,fp32,first,3,few,1",
        ),
    ],
)
def test_a_class_is_told_by_the_graph(nodes: tuple[Node, ...], expected: str) -> None:
    """By direction, dimensions, groups, type, layout, window, places and stride."""
    convolution = convolution_of(nodes)
    assert convolution
    assert ",".join(next(classes_of(convolution, capability=75))) == expected


def test_what_was_not_measured_has_no_estimate(folder: Path) -> None:
    """Neither another direction nor a graph without a convolution is like what was measured."""
    write(folder / "9.19.csv", f"{WIDE},fp32,first,3,many,1,1,1,1,9")
    assert estimate(question(), version=91900, capability=75)
    assert estimate(question(direction="input"), version=91900, capability=75) is None
    assert estimate(question(kind=1), version=91900, capability=75) is None
    assert estimate(parse("17 901:1:0 902:3:1,2\n15\n4 201:15:1"), version=91900, capability=75) is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [(90800, 1), (91000, 1), (91402, 1), (91500, 2), (91900, 2), (92250, 2), (92300, 3), (100000, 3)],
)
def test_of_the_versions_the_nearest_counts(folder: Path, version: int, expected: int) -> None:
    """Of two that are as near, the newer."""
    for number, name in enumerate(("9.10", "9.19", "9.26"), 1):
        write(folder / f"{name}.csv", f"{WIDE},fp32,first,3,odd,1,{number},{number},{number},9")
    found = estimate(question((1, 1, 1, 1), (1, 1, 3, 3), (1, 1, 1, 1)), version=version, capability=75)
    assert found
    assert found.expected_bytes == expected * 44


@pytest.mark.parametrize(("capability", "expected"), [(70, 75), (75, 75), (87, 86), (90, 86), (121, 120)])
def test_of_the_cards_the_highest_that_is_not_above_counts(folder: Path, capability: int, expected: int) -> None:
    """And the lowest where all are above."""
    rows = [f"{card},forward,2,none,fp32,first,3,odd,1,{card},{card},{card},9" for card in (75, 80, 86, 120)]
    write(folder / "9.19.csv", *rows)
    found = estimate(question((1, 1, 1, 1), (1, 1, 3, 3), (1, 1, 1, 1)), version=91900, capability=capability)
    assert found
    assert found.expected_bytes == expected * 44


def test_what_was_not_measured_of_one_card_is_taken_from_the_next(folder: Path) -> None:
    """From an older card first, then from another version."""
    write(
        folder / "9.19.csv", f"80,{WIDE[3:]},fp32,first,3,odd,1,1,1,1,9", "90,input,2,none,fp32,first,3,odd,1,2,2,2,9"
    )
    write(folder / "9.26.csv", "80,weights,2,none,fp32,first,3,odd,1,3,3,3,9")
    sizes = (1, 1, 1, 1), (1, 1, 3, 3), (1, 1, 1, 1)
    for direction, share in (("forward", 1), ("input", 2), ("weights", 3)):
        found = estimate(question(*sizes, direction=direction), version=91900, capability=90)
        assert found
        assert found.expected_bytes == share * 44


@pytest.mark.parametrize(
    "row",
    [
        f"{WIDE},fp32,first,3,many,1,1,2,3,9",  # expects less than the least
        f"{WIDE},fp32,first,3,many,1,nan,0,3,9",
        f"{WIDE},fp32,first,3,many,1,1,0,inf,9",
        f"{WIDE},fp32,first,3,many,1,1,-1,3,9",
        f"{WIDE},fp32,first,3,many,1,1,0,3,0",
        f"{WIDE},fp32,first,3,many,1,0,3,9",
        "?,forward,2,none,fp32,first,3,many,1,1,0,3,9",
        "",
    ],
)
def test_a_damaged_row_is_named(folder: Path, row: str) -> None:
    """With its line, and nothing is estimated from the others."""
    write(folder / "9.19.csv", f"{WIDE},fp32,first,3,many,1,1,1,1,9", row)
    with pytest.raises(TableError, match=r"line 3 of .*install ullage again"):
        estimate(question(), version=91900, capability=75)


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", ",".join(COLUMNS).encode()])
def test_a_file_that_is_no_table_is_named(folder: Path, data: bytes) -> None:
    """So is a folder without one."""
    with pytest.raises(TableError, match="contains no table"):
        estimate(question(), version=91900, capability=75)
    (folder / "9.19.csv").write_bytes(data)
    with pytest.raises(TableError, match=r"9\.19\.csv"):
        estimate(question(), version=91900, capability=75)


def test_a_table_is_read_once(folder: Path) -> None:
    """A later question does not go back to the disk."""
    write(folder / "9.19.csv", f"{WIDE},fp32,first,3,many,1,1,1,1,9")
    first = estimate(question(), version=91900, capability=75)
    write(folder / "9.19.csv", f"{WIDE},fp32,first,3,many,1,2,2,2,9")
    assert estimate(question(), version=91900, capability=75) == first


def attention(*, matmuls: int, size: int = 8) -> tuple[Node, ...]:
    """Graphs as of attention, as far as they are looked at: what is virtual has no memory."""
    tensors = [f"17 901:1:9 902:3:1,1,{size},64 903:3:1,1,64,1", f"17 901:1:0 902:3:1,1,{size},{size} 907:2:1"]
    return parse("\n".join([*tensors, *["19"] * matmuls, "15 801:15:2", f"4 201:15:{2 + matmuls}"]))


def test_attention_is_a_share_of_its_tensors_that_are_in_memory(folder: Path) -> None:
    """One class forward, one backward; another graph of matrices is none."""
    rows = [
        "75,attention,any,any,any,any,any,any,any,0,0,0,9",
        "75,attention backward,any,any,any,any,any,any,any,0.5,0.25,1,9",
    ]
    write(folder / "9.19.csv", *rows)
    forward, backward = (estimate(attention(matmuls=count), version=91900, capability=75) for count in (2, 5))
    assert forward == Estimate(expected_bytes=0, low_bytes=0, high_bytes=FLAT)
    assert backward == Estimate(expected_bytes=512, low_bytes=0, high_bytes=1024 + FLAT)
    assert estimate(attention(matmuls=3), version=91900, capability=75) is None


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_tables_are_whole_and_small(path: Path) -> None:
    """Every kind of card, direction and group has its widest class, and no class is there twice."""
    assert path.stat().st_size < 600_000
    rows = list(csv.reader(path.read_text().splitlines()))[1:]
    assert len(rows) == len(table._load(path))
    widest = {tuple(row[:4]) for row in rows if row[4] == ANY and row[1] in ("forward", "weights", "input")}
    for card in ("75", "80", "86", "89", "90", "120"):
        assert len([one for one in widest if one[0] == card]) == 3 * 3 * 3


@settings(max_examples=60, deadline=None)
@given(
    batch=some.integers(1, 256),
    channels=some.sampled_from([1, 3, 8, 64, 320, 2048]),
    size=some.integers(1, 300),
    window=some.sampled_from([1, 2, 3, 5, 7, 16]),
    depthwise=some.booleans(),
    direction=some.sampled_from(sorted(OPERATIONS)),
    kind=some.sampled_from([0, 2, 9, 1, 12]),
    dimensions=some.sampled_from([2, 3]),
    channels_last=some.booleans(),
    stride=some.integers(1, 3),
    version=some.integers(80000, 110000),
    capability=some.sampled_from([50, 75, 80, 87, 90, 103, 121]),
)
def test_every_convolution_has_an_estimate_within_its_range(
    batch: int,
    channels: int,
    size: int,
    window: int,
    depthwise: bool,
    direction: str,
    kind: int,
    dimensions: int,
    channels_last: bool,
    stride: int,
    version: int,
    capability: int,
) -> None:
    """Of whatever type, card and version."""
    spread = (size,) * dimensions
    nodes = question(
        (batch, channels, *spread),
        (channels, 1 if depthwise else channels, *((window,) * dimensions)),
        (batch, channels, *spread),
        direction=direction,
        kind=kind,
        stride=stride,
        channels_last=channels_last,
    )
    found = estimate(nodes, version=version, capability=capability)
    assert found
    assert 0 <= found.low_bytes <= found.expected_bytes <= found.high_bytes


def test_most_answers_of_cudnn_lie_in_the_range(with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """For problems that the table was not made from."""
    script = Path(__file__).parents[4] / "benchmarks" / "cudnn" / "measure.py"
    run = subprocess.run(
        [sys.executable, str(script), "check", "80", "--seconds", "5"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(table.__file__).parents[4]), **with_cudnn},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr
    _, problems, inside = run.stdout.split(": ", 1)[0], *run.stdout.split(": ", 1)[1].split(" problems, ")
    assert int(problems) > 50
    assert int(inside.partition("%")[0]) >= 70, run.stdout
