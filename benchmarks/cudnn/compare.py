"""Nets on emulated cards: workspaces against an independent script's; peaks with and without cuDNN's plans.

    python -m benchmarks.cudnn.compare [--quick] [--only resnet50 unet] [--gpus A100 T4] [--write docs/cudnn_plans.md]

Exit code 1: a workspace differs from what cuDNN answers to `independent.py`, which knows only the layers' shapes.
cuDNN has to be installed beside torch, or in the folder of packages that ULLAGE_CUDNN names.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.stale_pages import write_page
from ullage.base.units import MIB
from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.start import json_of, wheel_of
from ullage.gpu.emulator.cudnn.wheel import CudnnWheel, find_compiler
from ullage.gpu.emulator.emulate import figures_of
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.gpus import find_gpu

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "cudnn_plans.md"
CARDS: Final = ("A100", "T4")
NAMES: Final = (
    "resnet18", "resnet50", "vgg16", "mobilenet_v2", "convnext_tiny", "densenet121", "unet", "unet_3d",
    "diffusion_block", "vit_b_16", "speech_stem",
)  # fmt: skip
QUICK: Final = ("resnet18", "speech_stem")
# No bf16: PyTorch has no convolution of cuDNN's do it on a T4.
FORMS: Final = ("fp32:channels_first", "fp32-strict:channels_first", "fp16:channels_last", "fp16:channels_first")
USUAL: Final = 3  # of these
HEAD: Final = (
    "net", "GPU", "form", "workspaces equal", "allocated, workspaces of 0", "with plans", "reserved, workspaces of 0",
    "with plans", "largest workspace",
)  # fmt: skip
BEGIN, END = "<!-- plans -->\n", "<!-- end of plans -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One net in one form on one card."""

    net: str
    gpu: str
    form: str
    plans: dict[str, Any]
    nothing: dict[str, Any]
    equal: int
    differing: list[str]

    @property
    def line(self) -> str:
        """The row in the table; sizes in MiB."""
        cells = [self.net, self.gpu, self.form, f"{self.equal} of {self.equal + len(self.differing)}"]
        for name in ("allocated_bytes", "reserved_bytes"):
            cells += [f"{run[name] / MIB:,.0f}" for run in (self.nothing, self.plans)]
        cells.append(f"{self.plans['largest_workspace_bytes'] / MIB:,.1f}")
        return f"| {' | '.join(cells)} |"


def answers(script: str, *arguments: str) -> Iterator[Any]:
    """Start a script beside this one, and yield what each of its lines says."""
    # What it says of errors goes to a file: a pipe that nobody reads would stop it.
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, str(HERE / script), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                yield json.loads(text)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{script} {' '.join(arguments[:2])} failed:\n{errors.read()[-2000:]}")


def independent(gpu: str, type_name: str, layers: Any, wheel: CudnnWheel) -> list[list[Any]]:
    """Ask cuDNN about the layers of a net, in a process that knows nothing of the emulator's questions."""
    torch, card, folder = find_torch(), find_gpu(gpu), library.FOLDER
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "independent.py"),
            str(wheel.library),
            json_of(card.driver_name, figures_of(card), cuda_number=torch.cuda_number),
            type_name,
            str(folder / "libullage_card.so"),
            str(folder / str(torch.cuda[0]) / "libullage_cublasLt.so"),
            "apart",
            str(folder / str(torch.cuda[0]) / "libcuda.so.1"),
            *map(str, find_compiler(wheel)),
        ],
        input=json.dumps(layers),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"independent.py failed on {gpu}:\n{done.stderr[-2000:]}")
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def compare(answered: list[list[Any]], expected: list[list[Any]]) -> tuple[int, list[str]]:
    """Return how many problems have the same workspaces on both sides, and say what differs."""
    ours, theirs = _by_problem(answered), _by_problem(expected)
    # PyTorch has kernels of its own for some depthwise convolutions (aten/src/ATen/native/Convolution.cpp).
    elsewhere = _by_problem([answer for answer in expected if answer[-1]]).keys() - ours.keys()
    problems = sorted((ours.keys() | theirs.keys()) - elsewhere)
    differing = [
        f"{problem}: {ours.get(problem)} by the emulator, {theirs.get(problem)} by cuDNN"
        for problem in problems
        if ours.get(problem) != theirs.get(problem)
    ]
    return len(problems) - len(differing), differing


def _by_problem(found: list[list[Any]]) -> dict[str, set[int]]:
    problems: dict[str, set[int]] = {}
    for direction, x, w, y, last, size, *_ in found:
        shapes = " ".join("x".join(map(str, shape)) for shape in (x, w, y))
        problems.setdefault(f"{direction} {shapes}{' channels last' if last else ''}", set()).add(size)
    return problems


def rows(gpus: Sequence[str], words: list[str], wheel: CudnnWheel) -> Iterator[Row]:
    """Run every net three ways on every card."""
    layers = dict(zip(words, answers("layers.py", *words), strict=True))
    for gpu in gpus:
        runs = zip(
            answers("emulated.py", gpu, "plans", *words), answers("emulated.py", gpu, "nothing", *words), strict=True
        )
        for word, (plans, nothing) in zip(words, runs, strict=True):
            net, type_name, layout = word.split(":")
            equal, differing = compare(plans["answered"], independent(gpu, type_name, layers[word], wheel))
            yield Row(net, gpu, text_of(f"{type_name}:{layout}"), plans, nothing, equal, differing)


def text_of(form: str) -> str:
    """Write a form as the table has it."""
    return form.replace(":", ", ").replace("_", " ").replace("fp32-strict", "fp32 without TF32")


def write(page: Path, found: list[Row], wheel: CudnnWheel) -> None:
    """Write the table between its marks."""
    made = f"Made with torch {importlib.metadata.version('torch')} and cuDNN {wheel.text}; sizes in MiB."
    head = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines = [row.line for row in sorted(found, key=lambda row: (NAMES.index(row.net), row.gpu))]
    write_page(page, "\n".join([made, "", *head, *lines]), between=(BEGIN, END))


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NET")
    parser.add_argument("--gpus", nargs="+", metavar="GPU", help=" and ".join(CARDS))
    parser.add_argument("--forms", type=int, default=USUAL, help=f"how many of {', '.join(FORMS)}")
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}, on one card, in one form")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into a page; not where something differs"
    )
    options = parser.parse_args()
    wheel = wheel_of(find_torch())
    if wheel is None:
        raise SystemExit(
            "cuDNN is not installed beside torch; name a folder of packages that has it: ULLAGE_CUDNN=FOLDER"
        )
    forms = FORMS[: 1 if options.quick else options.forms]
    words = [f"{net}:{form}" for net in options.only or (QUICK if options.quick else NAMES) for form in forms]
    gpus = options.gpus or CARDS[: 1 if options.quick else None]
    found = []
    for row in rows(gpus, words, wheel):
        print(row.line, flush=True)
        found.append(row)
    bad = [f"{row.net}, {row.gpu}, {row.form}: {text}" for row in found for text in row.differing]
    print("\n".join(bad) or "every workspace is equal")
    if options.write and not bad:
        write(options.write, found, wheel)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
