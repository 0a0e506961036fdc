"""Measure the workspaces of many convolutions, for where cuDNN cannot be asked: writes `emulator/cudnn/tables/*.csv`.

    ULLAGE_CUDNN=FOLDER python benchmarks/cudnn/measure.py all ANSWERS src/ullage/gpu/emulator/cudnn/tables/9.19.csv

asks about every card in turn, for `--seconds` each, and keeps the answers in the folder ANSWERS; what is there already
is not asked about again. `ask`, `attention` and `write` are its parts. FOLDER has `nvidia/cudnn` of one version, and
NVRTC beside it (`tools/cudnn.sh` makes one). No card is needed. Problems are drawn at random, the same ones every time:
shapes as in real nets, in every class. The workspace is that of the first plan that can be built, of the instant
heuristics and else of the fallback's, which is PyTorch's rule. `--seconds` ends the drawing early; classes are drawn
from in turn, so that each has had its share by then.
"""

import argparse
import csv
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

from independent import flat

from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.real import Cudnn, CudnnError
from ullage.gpu.emulator.cudnn.start import json_of
from ullage.gpu.emulator.cudnn.table import (
    ALL_ENGINES,
    ANY,
    COLUMNS,
    OPERATIONS,
    Key,
    attention_bytes,
    attention_classes_of,
    classes_of,
    estimate,
)
from ullage.gpu.emulator.cudnn.tree import Convolution, convolution_of, parse
from ullage.gpu.emulator.cudnn.wheel import CudnnWheel, find_compiler, find_cudnn
from ullage.gpu.emulator.emulate import figures_of
from ullage.gpu.gpus import find_gpu

CARDS: Final = {75: "T4", 80: "A100", 86: "A10", 89: "L4", 90: "H100", 100: "B200", 120: "RTX 5090"}
FIRST_WITH_ATTENTION: Final = 80  # PyTorch has cuDNN do none on older cards
TYPES: Final = {"fp32": 0, "fp16": 2, "bf16": 9}
# The operation, and its attributes: alpha, beta, convolution, weights, input, output
DIRECTIONS: Final = {
    "forward": (10, 700, 701, 702, 703, 704, 705),
    "weights": (11, 712, 713, 714, 715, 716, 717),
    "input": (12, 706, 707, 708, 709, 710, 711),
}
ONE: Final = 0x3F800000  # 1.0, as its bits
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
CHANNELS: Final = (16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048)
FIRST: Final = (1, 3, 4)  # channels of what a net is given
SIZES: Final = {
    1: (50, 100, 197, 400, 750, 1500, 3000, 8000, 16000),
    2: (7, 7, 8, 13, 14, 14, 16, 17, 20, 28, 28, 32, 35, 40, 56, 64, 80, 112, 128, 160, 224, 256, 512),
    3: (4, 7, 8, 14, 16, 28, 32, 48, 64, 96),
}
KERNELS: Final = {1: {"1": (1,), "3": (3,), "5": (5, 7, 10, 15, 31)}, 2: {"1": (1,), "3": (3,), "5": (5, 7, 11)}}
LARGEST_BYTES: Final = 2 << 30  # of one problem's tensors
ROUNDS: Final = 60
DEPTHWISE_EVERY: Final = 5  # rounds
FEWEST: Final = 6  # problems of a class of its own
ALIKE: Final = 0.05  # of the tensors' bytes: a class that is as near to a wider one has no row
FORTIETH: Final = 40
TENTH: Final = 10
CUDA: Final = {12: 12080, 13: 13000}  # the driver, by the major version of NVRTC
MODES: Final = (0, 2)  # instant, fallback
NEAR: Final = 0.25
BENCHMARK_LIMIT: Final = 10  # torch.backends.cudnn.benchmark_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One convolution; sizes are (batch, channels, ...), of two dimensions at least."""

    direction: str
    type: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    is_channels_last: bool

    def question(self, mode: int) -> str:
        """Write it as the emulated cuDNN does; mode 0 asks the instant heuristics, 2 the fallback's."""
        kind, alpha, beta, how, w, x, y = DIRECTIONS[self.direction]
        plain = len(self.x) - 2
        return "\n".join(
            [
                self._tensor(self.x, ord("x")),
                self._tensor(self.w, ord("w")),
                self._tensor(self.y, ord("y")),
                f"1 100:1:0 101:7:1 102:3:{_list((1,) * plain)} 103:3:{_list(self.strides)} "
                f"104:3:{_list(self.padding)} 105:3:{_list(self.padding)} 106:3:{plain}",
                f"{kind} {alpha}:4:{ONE} {beta}:4:0 {how}:15:3 {w}:15:1 {x}:15:0 {y}:15:2",
                "15 801:15:4",
                f"4 200:8:{mode} 201:15:5",
            ]
        )

    def _tensor(self, sizes: tuple[int, ...], number: int) -> str:
        order = range(len(sizes) - 1, -1, -1)
        strides, step = [0] * len(sizes), 1
        for axis in [1, *range(len(sizes) - 1, 1, -1), 0] if self.is_channels_last else order:
            strides[axis] = step
            step *= sizes[axis]
        return f"17 900:3:16 901:1:{TYPES[self.type]} 902:3:{_list(sizes)} 903:3:{_list(strides)} 906:3:{number}"


def _list(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def draw(
    dice: random.Random, *, plain: int, kernel: str, groups: str, stride: int
) -> dict[str, tuple[int, ...]] | None:
    """Draw the sizes of a convolution; None for one that nobody would make.

    Args:
        dice: of this class.
        plain: 1 over time, 2 over pictures, 3 over volumes.
        kernel: a key of KERNELS.
        groups: "none", "grouped" or "depthwise".
        stride: of every dimension.
    """
    batch, size = dice.choice(BATCHES), dice.choice(SIZES[plain])
    inputs = dice.choice(FIRST) if groups == "none" and dice.random() < 0.1 else dice.choice(CHANNELS)
    outputs = inputs if groups == "depthwise" or dice.random() < 0.4 else dice.choice(CHANNELS)
    count = {"none": 1, "grouped": dice.choice((2, 4, 8, 32)), "depthwise": inputs}[groups]
    window = dice.choice(KERNELS[min(plain, 2)][kernel])
    if inputs % count or outputs % count or count > inputs or (groups == "grouped" and inputs == count):
        return None
    half = window // 2
    out = (size + 2 * half - window) // stride + 1
    over = (1, size) if plain == 1 else (size,) * plain
    under = (1, out) if plain == 1 else (out,) * plain
    windows = (1, window) if plain == 1 else (window,) * plain
    sizes = {
        "x": (batch, inputs, *over),
        "w": (outputs, inputs // count, *windows),
        "y": (batch, outputs, *under),
        "strides": (1, stride) if plain == 1 else (stride,) * plain,
        "padding": (0, half) if plain == 1 else (half,) * plain,
    }
    biggest = 4 * sum(prod(sizes[name]) for name in "xwy")
    return sizes if out > 0 and biggest <= LARGEST_BYTES and window <= 2 * size else None


def problems(capability: int, series: str = "") -> Iterator[Problem]:
    """Yield the problems of a card, the first of every class, then the second of every class, and so on.

    Another series has other problems.

    cuDNN compiles a kernel for most depthwise ones, which takes a hundred times as long, and few have a workspace:
    fewer are drawn.
    """
    layouts = ((1, False), (2, False), (2, True), (3, False), (3, True))
    shapes = [(groups, kernel, stride) for groups in ("none", "grouped") for kernel in KERNELS[2] for stride in (1, 2)]
    classes = list(product(DIRECTIONS, ("fp32", "half"), layouts, [*shapes, ("depthwise", "", 0)]))
    random.Random(0).shuffle(classes)  # one that ends within the first turn has seen all kinds
    dice = {one: random.Random(repr((capability, one)) + series) for one in classes}
    for number in range(ROUNDS):
        for one in classes:
            (direction, kind, (plain, is_last), (groups, kernel, stride)), die = one, dice[one]
            if groups == "depthwise" and number % DEPTHWISE_EVERY:
                continue
            stride = stride or die.choice((1, 1, 2))
            sizes = draw(die, plain=plain, kernel=kernel or die.choice("35"), groups=groups, stride=stride)
            if sizes:
                kind = "fp32" if kind == "fp32" else die.choice(("fp16", "bf16"))
                yield Problem(direction=direction, type=kind, is_channels_last=is_last, **sizes)


def workspace_bytes(cudnn: Cudnn, questions: Iterable[str]) -> int | None:
    """Return the workspace that PyTorch would ask for; None where no engine takes the problem."""
    for question in questions:
        try:
            candidates = cudnn.candidates(parse(question))
        except CudnnError:
            continue
        for _, config in candidates:
            try:
                return cudnn.workspace_bytes(config)
            except CudnnError:
                continue
    return None


def workspaces_of_engines(cudnn: Cudnn, questions: Iterable[str]) -> list[int]:
    """Return the workspaces of the plans that PyTorch would try for a benchmark, which has a limit of ten."""
    sizes: list[int] = []
    for question in questions:
        with suppress(CudnnError):
            for _, config in cudnn.candidates(parse(question)):
                with suppress(CudnnError):
                    sizes.append(cudnn.workspace_bytes(config))
                if len(sizes) == BENCHMARK_LIMIT:
                    return sizes
    return sizes


def load(capability: int) -> tuple[Cudnn, CudnnWheel]:
    """Load cuDNN for a card, with what it looks for by name."""
    wheel = find_cudnn(Path("/"))
    if wheel is None:
        raise SystemExit("no cuDNN: ULLAGE_CUDNN names a folder that holds nvidia/cudnn")
    major = 13 if (wheel.library.parents[2] / "cu13").is_dir() else 12
    for path in (library.FOLDER / "libullage_card.so", library.FOLDER / str(major) / "libullage_cublasLt.so"):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for path in (library.FOLDER / str(major) / "libcuda.so.1", *find_compiler(wheel)):
        ctypes.CDLL(str(path))
    card = find_gpu(CARDS[capability])
    device = json_of(card.driver_name, figures_of(card), cuda_number=CUDA[major])
    return Cudnn(wheel.library, device), wheel


def ask(capability: int, answers: Path, *, seconds: float, of_all_engines: bool = False) -> None:
    """Ask about a card's problems, and write the answers as lines; of all engines, the least and the largest."""
    cudnn, _ = load(capability)
    end = time.monotonic() + seconds
    with answers.open("w", newline="", buffering=1) as file:  # a line at a time: cuDNN may end the process
        writer = csv.writer(file, lineterminator="\n")
        for problem in problems(capability):
            questions = map(problem.question, MODES)
            found = workspaces_of_engines(cudnn, questions) if of_all_engines else [workspace_bytes(cudnn, questions)]
            answer = [size for size in found if size is not None]
            if answer:
                sizes = [" ".join(map(str, value)) for value in (problem.x, problem.w, problem.y, problem.strides)]
                last = int(problem.is_channels_last)
                writer.writerow(
                    [cudnn.version, capability, problem.direction, problem.type, last, *sizes, min(answer), max(answer)]
                )
            if time.monotonic() > end:
                break


def ask_of_attention(capability: int, answers: Path) -> None:
    """Ask about the attention that `attention.py` has torch ask for, and write the answers as lines."""
    cudnn, _ = load(capability)
    with tempfile.TemporaryDirectory() as asked, answers.open("w", newline="", buffering=1) as file:
        script = Path(__file__).with_name("attention.py")
        own = os.environ | {"ULLAGE_CUDNN_CACHE": asked}
        subprocess.run([sys.executable, str(script), CARDS[capability]], env=own, check=True)
        writer = csv.writer(file, lineterminator="\n")
        for path in sorted(path for path in Path(asked).rglob("*") if path.is_file()):
            wanted, _, question = path.read_text().partition("\n\n")[0].partition("\n")
            if wanted != "heuristics":
                continue
            nodes = parse(question)
            for key in attention_classes_of(nodes, capability=capability):
                size = workspace_bytes(cudnn, [question])
                if size is not None:
                    writer.writerow([*key, attention_bytes(nodes), size])


def ask_of_all(folder: Path, *, seconds: float) -> None:
    """Ask about every card that has no answers in a folder yet; each in a process of its own, which cuDNN may end."""
    folder.mkdir(parents=True, exist_ok=True)
    for capability in CARDS:
        asking = ["ask", "--seconds", str(seconds)]
        parts = {f"answers-{capability}.csv": asking, f"engines-{capability}.csv": [*asking, "--engines"]}
        if capability >= FIRST_WITH_ATTENTION:
            parts[f"attention-{capability}.csv"] = ["attention"]
        for name, (part, *options) in parts.items():
            if not (folder / name).exists():
                print(name, file=sys.stderr)
                words = [sys.executable, __file__, part, str(capability), str(folder / name), *options]
                subprocess.run(words, check=False)


def read(answers: Path) -> Iterator[tuple[int, Convolution, int, int]]:
    """Yield what `ask` has written: capability, convolution, the least and the largest workspace in bytes."""
    names = {short: long for long, short in OPERATIONS.items()}
    with answers.open(newline="") as file:
        for _, capability, direction, kind, last, *sizes, least, largest in csv.reader(file):
            x, w, y, strides = (tuple(map(int, text.split())) for text in sizes)
            plain = (1,) * len(strides)
            yield (
                int(capability),
                Convolution(
                    operation=names[direction],
                    type=kind,
                    x=x,
                    w=w,
                    y=y,
                    is_channels_last=last == "1" and x[1] > 1,
                    strides=strides,
                    paddings=plain,
                    dilations=plain,
                ),
                int(least),
                int(largest),
            )


def tabulate(answers: Iterable[Path]) -> list[list[str]]:
    """Gather the shares of every class; classes of few problems, or like a wider one, are left to the wider ones."""
    shares = defaultdict(list)
    for path in answers:
        if path.name.startswith("attention"):
            for *words, tensors, size in csv.reader(path.read_text().splitlines()):
                shares[tuple(words)].append(int(size) / int(tensors))
            continue
        of_all_engines = path.name.startswith("engines")
        for capability, convolution, least, largest in read(path):
            for key in classes_of(convolution, capability=capability, of_all_engines=of_all_engines):
                shares[key] += [size / convolution.tensor_bytes for size in {least, largest}]
    figures: dict[Key, tuple[float, float, float]] = {}
    for key, found in sorted(shares.items(), key=lambda item: -item[0].count(ANY)):  # the widest first
        if len(found) < FEWEST and ANY not in key[-3]:
            continue
        found.sort()
        # A rare engine takes a hundred times the tensors, and of all the largest are the first that PyTorch skips.
        beyond = len(found) // (TENTH if ALL_ENGINES in key[1] else FORTIETH)
        low, high = found[0], found[-1 - beyond]
        own = min(statistics.median_low(found), high), low, high
        wider = next((figures[one] for one in _wider(key) if one in figures), None)
        if wider is None or any(abs(a - b) > ALIKE for a, b in zip(own, wider, strict=True)):
            figures[key] = own
    return [
        [*key, _down(middle), _down(low), _up(high), str(len(shares[key]))]
        for key, (middle, low, high) in sorted(figures.items())
    ]


def _wider(key: Key) -> Iterator[Key]:
    """Yield the classes that a class is part of, the narrowest first, as `classes_of` does."""
    left_out = len(key) - key.count(ANY)
    for end in (8, 7, 6, 4):
        if end < left_out:
            yield (*key[:end], *[ANY] * (len(key) - end))


def write(table: Path, answers: Iterable[Path]) -> None:
    """Write a version's table."""
    table.parent.mkdir(exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(tabulate(answers))


def _down(share: float) -> str:
    """Write a share with four figures, never as more than it is."""
    return f"{Decimal(share).normalize(Context(prec=4, rounding=ROUND_FLOOR)):f}" if share else "0"


def _up(share: float) -> str:
    return f"{Decimal(share).normalize(Context(prec=4, rounding=ROUND_CEILING)):f}" if share else "0"


def check(capability: int, problems: Iterable[Problem], *, seconds: float) -> str:
    """Say how often cuDNN's own answer lies in the range of the installed table."""
    cudnn, _ = load(capability)
    end = time.monotonic() + seconds
    inside, near, wide = 0, 0, []
    for problem in dict.fromkeys(problems):  # nets repeat their layers
        size = workspace_bytes(cudnn, map(problem.question, MODES))
        nodes = parse(problem.question(0))
        found, convolution = estimate(nodes, version=cudnn.version, capability=capability), convolution_of(nodes)
        if size is None or found is None or convolution is None:
            continue
        inside += found.low_bytes <= size <= found.high_bytes
        near += abs(found.expected_bytes - size) <= NEAR * convolution.tensor_bytes
        wide.append((found.high_bytes - found.low_bytes) / convolution.tensor_bytes)
        if time.monotonic() > end:
            break
    if not wide:
        return "no problem could be compared"
    return (
        f"{cudnn.version} on {capability}: {len(wide)} problems, {inside / len(wide):.0%} within the range, "
        f"{near / len(wide):.0%} nearer to what is expected than {NEAR:.0%} of the tensors' bytes; "
        f"half of the ranges are narrower than {statistics.median(wide):.2f} of them"
    )


def layers_of(text: str, type_name: str) -> Iterator[Problem]:
    """Yield the problems of a net's layers, as `layers.py` writes them."""
    for layer in map(flat, [layer for line in text.splitlines() for layer in json.loads(line)]):
        directions = ["input" if layer["transposed"] else "forward", "weights"]
        if layer["input_needs_grad"]:
            directions.append("forward" if layer["transposed"] else "input")
        for direction in directions:
            if all(value == 1 for value in layer["dilation"]):
                yield Problem(
                    direction=direction,
                    type=type_name,
                    x=tuple(layer["x"]),
                    w=tuple(layer["w"]),
                    y=tuple(layer["y"]),
                    strides=tuple(layer["stride"]),
                    padding=tuple(layer["padding"]),
                    is_channels_last=layer["channels_last"],
                )


def main() -> None:
    """Ask for one card's answers, write the table of several, or compare the table with cuDNN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask about the problems of one card")
    asking.add_argument("capability", type=int, choices=CARDS)
    asking.add_argument("answers", type=Path)
    asking.add_argument("--seconds", type=float, default=60)
    asking.add_argument("--engines", action="store_true", help="about all engines, not the first alone")
    every = commands.add_parser("all", help="ask about all cards, and write the table")
    every.add_argument("folder", type=Path, help="of the answers")
    every.add_argument("table", type=Path)
    every.add_argument("--seconds", type=float, default=270)
    attending = commands.add_parser("attention", help="ask about attention on one card")
    attending.add_argument("capability", type=int, choices=CARDS)
    attending.add_argument("answers", type=Path, help="attention-CARD.csv")
    writing = commands.add_parser("write", help="write the table of a version, from the answers for its cards")
    writing.add_argument("table", type=Path)
    writing.add_argument("answers", type=Path, nargs="+")
    checking = commands.add_parser("check", help="ask about other problems, and compare with the table")
    checking.add_argument("capability", type=int, choices=CARDS)
    checking.add_argument("--seconds", type=float, default=60)
    checking.add_argument("--layers", choices=TYPES, help="of these: what layers.py writes, on standard input")
    asked = parser.parse_args()
    if asked.command == "check":
        found = layers_of(sys.stdin.read(), asked.layers) if asked.layers else problems(asked.capability, "check")
        print(check(asked.capability, found, seconds=asked.seconds))
        return
    if asked.command == "ask":
        ask(asked.capability, asked.answers, seconds=asked.seconds, of_all_engines=asked.engines)
        return
    if asked.command == "attention":
        ask_of_attention(asked.capability, asked.answers)
        return
    if asked.command == "all":
        ask_of_all(asked.folder, seconds=asked.seconds)
        asked.answers = sorted(asked.folder.glob("*.csv"))
    write(asked.table, asked.answers)


if __name__ == "__main__":
    main()
