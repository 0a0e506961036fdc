"""Nets on emulated cards: their workspaces against an independent script's, and their peaks with and without cuDNN's plans.

    python benchmarks/cudnn/compare.py [--only resnet50 unet] [--gpus A100 T4] [--write docs/cudnn_plans.md]

Exit code 1: a workspace differs from what cuDNN answers to `independent.py`, which knows only the layers' shapes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage._units import MIB
from ullage.emulator import library
from ullage.emulator.cudnn.card import json_of
from ullage.emulator.cudnn.start import wheel_of
from ullage.emulator.cudnn.wheel import find_compiler
from ullage.emulator.emulate import figures_of
from ullage.emulator.torch_build import find_torch
from ullage.gpus import find_gpu

HERE: Final = Path(__file__).parent
NAMES: Final = (
    "resnet18", "resnet50", "vgg16", "mobilenet_v2", "convnext_tiny", "densenet121", "unet", "unet_3d",
    "diffusion_block", "vit_b_16", "speech_stem",
)  # fmt: skip
FORMS: Final = (("fp32", "channels_first"), ("bf16", "channels_last"), ("fp16", "channels_first"))


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


def python(*arguments: str, given: str = "", cache: str = "") -> str:
    """Run one of the scripts beside this one."""
    environment = os.environ | ({"ULLAGE_CUDNN_CACHE": cache} if cache else {})
    done = subprocess.run(
        [sys.executable, str(HERE / arguments[0]), *arguments[1:]],
        input=given, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments[:4])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def compare(net: str, gpu: str, type_name: str, layout: str) -> Row:
    """Run a net three ways."""
    torch = find_torch()
    wheel = wheel_of(torch)
    if wheel is None:
        raise SystemExit("cuDNN is not installed beside torch; name a folder that has it: ULLAGE_CUDNN=FOLDER")
    card = find_gpu(gpu)
    folder = library.FOLDER
    with tempfile.TemporaryDirectory() as cache:
        plans = json.loads(python("emulated.py", net, type_name, layout, gpu, "plans", cache=cache))
    nothing = json.loads(python("emulated.py", net, type_name, layout, gpu, "nothing"))
    independent = json.loads(
        python(
            "independent.py",
            str(wheel.library),
            json_of(card.driver_name, figures_of(card), cuda_number=torch.cuda_number),
            type_name,
            str(folder / "libullage_card.so"),
            str(folder / str(torch.cuda[0]) / "libullage_cublasLt.so"),
            "apart",
            str(folder / str(torch.cuda[0]) / "libcuda.so.1"),
            *map(str, find_compiler(wheel)),
            given=python("layers.py", net, type_name, layout),
        )
    )
    ours, theirs = _by_problem(plans["answered"]), _by_problem(independent)
    # PyTorch has kernels of its own for some depthwise convolutions (aten/src/ATen/native/Convolution.cpp).
    elsewhere = _by_problem([answer for answer in independent if answer[-1]]).keys() - ours.keys()
    differing = [
        f"{problem}: {ours.get(problem)} by the emulator, {theirs.get(problem)} by cuDNN"
        for problem in sorted((ours.keys() | theirs.keys()) - elsewhere)
        if ours.get(problem) != theirs.get(problem)
    ]
    equal = len((ours.keys() | theirs.keys()) - elsewhere) - len(differing)
    form = f"{type_name}, {layout.replace('_', ' ')}"
    return Row(net, gpu, form, plans, nothing, equal, differing)


def _by_problem(answers: list[list[Any]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for direction, x, w, y, last, size, *_ in answers:
        shapes = " ".join("x".join(map(str, shape)) for shape in (x, w, y))
        found.setdefault(f"{direction} {shapes}{' channels last' if last else ''}", set()).add(size)
    return found


def line(row: Row) -> str:
    """Write a row of the table."""
    cells = [row.net, row.gpu, row.form, f"{row.equal} of {row.equal + len(row.differing)}"]
    for name in ("allocated_bytes", "reserved_bytes"):
        cells += [f"{run[name] / MIB:,.0f}" for run in (row.nothing, row.plans)]
    cells.append(f"{row.plans['largest_workspace_bytes'] / MIB:,.1f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, metavar="NET")
    parser.add_argument("--gpus", nargs="+", default=["T4", "A100", "RTX 4090", "H100"])
    parser.add_argument("--forms", type=int, default=len(FORMS), help="how many of dtype and layout")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    head = [
        "net",
        "card",
        "form",
        "workspaces equal",
        "allocated: 0",
        "with plans",
        "reserved: 0",
        "with plans",
        "largest workspace",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    print("\n".join(lines), flush=True)
    bad = []
    for net in options.only:
        for gpu in options.gpus:
            for type_name, layout in FORMS[: options.forms]:
                row = compare(net, gpu, type_name, layout)
                lines.append(line(row))
                print(lines[-1], flush=True)
                bad += [f"{net}, {gpu}, {row.form}: {text}" for text in row.differing]
    print("\n".join(bad))
    if options.write and not bad:
        text = options.write.read_text()
        before, _, rest = text.partition("<!-- plans -->\n")
        _, _, after = rest.partition("<!-- end of plans -->")
        options.write.write_text(f"{before}<!-- plans -->\n" + "\n".join(lines) + f"\n<!-- end of plans -->{after}")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
