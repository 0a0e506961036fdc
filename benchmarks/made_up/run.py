"""Predict programs of other projects with generated weights and data, and write docs/made_up_programs.md.

    PYTHONPATH=FOLDER python -m benchmarks.made_up.run [--only TEXT] [--write docs/made_up_programs.md]

FOLDER has the packages (tools/packages.sh). A case with a twin is run a second time on a checkpoint that the library
has really saved: every step's peak has to be the same, to the byte. Exit code 1 where a case has no verdict, differs
from its twin, or needs more of the host's memory than it may. With --only the other rows of the page stay.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.stale_pages import without_stamp, write_page

HERE: Final = Path(__file__).parent
CONFIG: Final = HERE / "config"
SCRIPTS: Final = HERE / "scripts"
MOST_HOST_BYTES: Final = 4 << 30
SAVE: Final = (
    "import ullage; ullage.emulate('T4'); import torch; from transformers import AutoConfig, AutoModelForCausalLM; "
    "AutoModelForCausalLM.from_config(AutoConfig.from_pretrained({config!r}), dtype=torch.bfloat16)"
    ".save_pretrained({folder!r})"
)
NAME: Final = "someone/tiny"
"""The name of the model whose configuration is in `config`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program and the emulated GPU on which it runs."""

    what: str
    script: str
    """A script of ours, or "trl:sft.py": one of a package's."""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--config", str(CONFIG))
    gpu: str = "A100"
    has_twin: bool = False


def trl(name: str) -> tuple[str, ...]:
    """The arguments of a script of trl's."""
    sizes = ("--per_device_train_batch_size", "2", "--report_to", "none", "--gradient_checkpointing", "false")
    return ("--model_name_or_path", NAME, "--dataset_name", "someone/rows", "--output_dir", f"out-{name}", *sizes)


LARGE = ("--seconds", "900")
CASES: Final = (
    Case(
        what="trl's sft.py, chats of 256 tokens",
        script="trl:sft.py",
        arguments=trl("sft"),
        options=("--config", str(CONFIG), "--made-up-data", "chat:length=256,rows=32"),
        has_twin=True,
    ),
    Case(
        what="trl's dpo.py, preferences of 256 tokens",
        script="trl:dpo.py",
        arguments=trl("dpo"),
        options=("--config", str(CONFIG), "--made-up-data", "preference:length=256,rows=32"),
        has_twin=True,
    ),
    Case(what="QLoRA, 4 bits", script="qlora.py", arguments=(NAME, "256", "4"), has_twin=True),
    Case(what="LoRA on 8 bits", script="qlora.py", arguments=(NAME, "256", "8"), has_twin=True),
    Case(
        what="timm, sentence-transformers, datasets, processors",
        script="libraries.py",
        options=("--made-up-data", "image:224,rows=8,classes=4"),
    ),
    Case(what="Stable Diffusion 1.5, diffusers", script="diffusion.py", options=()),
    Case(
        what="Llama 70B, FSDP2, rank 0 of 8",
        script="shards.py",
        options=("--world-size", "8", "--alloc-conf", "expandable_segments:True", *LARGE),
        gpu="H100",
    ),
    Case(
        what="Llama 70B over 8 GPUs, device_map",
        script="over_cards.py",
        arguments=("meta-llama/Llama-3.3-70B-Instruct", "2048"),
        options=("--count", "8", *LARGE),
        gpu="H100",
    ),
    Case(
        what="Llama 70B, QLoRA, one GPU",
        script="qlora.py",
        arguments=("meta-llama/Llama-3.3-70B-Instruct", "1024", "4"),
        options=LARGE,
        gpu="H100",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What `ullage predict` answered."""

    answer: dict[str, Any] | None
    error: str
    seconds: float
    host_bytes: int
    """The most that one process had resident."""

    @property
    def peaks(self) -> list[tuple[int, int]]:
        """The peaks of every step."""
        steps = (self.answer or {}).get("steps", ())
        return [(step["peak_allocated_bytes"], step["peak_reserved_bytes"]) for step in steps]


def script_of(case: Case) -> Path:
    """The path of a case's script."""
    package, _, name = case.script.partition(":")
    if not name:
        return SCRIPTS / package
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} is not installed: tools/packages.sh"
    assert found.origin is not None
    return Path(found.origin).parent / "scripts" / name


def predicted(case: Case, folder: Path, arguments: tuple[str, ...]) -> Outcome:
    """Run a case in a folder."""
    command = [sys.executable, "-m", "ullage", "predict", "--json", "--gpu", case.gpu, "--random-weights"]
    command += [*case.options, str(script_of(case)), *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    began = time.monotonic()
    with (folder / "out").open("wb") as out, (folder / "error").open("wb") as error:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=error)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = (folder / "out").read_text()
    return Outcome(
        answer=json.loads(said) if process.returncode in (0, 1, 4) and said.strip() else None,
        error=(folder / "error").read_text(),
        seconds=time.monotonic() - began,
        host_bytes=usage.ru_maxrss << 10,
    )


def row(case: Case, folder: Path) -> tuple[str, bool]:
    """Return a row of the table, and whether the case is as it should be."""
    (folder / "tmp").mkdir(exist_ok=True)
    made = predicted(case, folder, case.arguments)
    if made.answer is None:
        return f"| {case.what} | {case.gpu} | **no result**: {made.error.strip().splitlines()[-1]} | | | |", False
    twin, is_good = "", made.host_bytes <= MOST_HOST_BYTES and "generated: " in " ".join(made.answer["notes"])
    if case.has_twin:
        real = predicted(case, folder, tuple(str(folder / "real") if each == NAME else each for each in case.arguments))
        is_same = made.peaks == real.peaks and bool(real.peaks)
        twin, is_good = "equal to the byte" if is_same else f"**{real.peaks}**", is_good and is_same
    left = [each.name for each in (folder / "tmp").iterdir() if each.name.startswith("ullage-")]
    verdict = made.answer["verdict"].replace("unknown", "uncertain")
    allocated = made.answer["peak_allocated_bytes"] / 2**30
    cells = (
        case.what,
        case.gpu,
        f"{verdict}, {allocated:.2f} GiB",
        twin,
        f"{made.host_bytes / 2**30:.2f} GiB",
        f"{made.seconds:.0f} s",
    )
    return "| " + " | ".join(cells) + " |", is_good and not left


def renewed(page: list[str], lines: list[str]) -> list[str]:
    """Return a page with those of its rows renewed that were run."""
    rows = {line.split("|")[1]: line for line in lines if line.startswith("| ")}
    return [rows.get(line.split("|")[1], line) if line.startswith("| ") else line for line in page]


def main() -> int:
    """Run every case, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases that have this in their names")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        "# Which programs run on generated weights and data?",
        "",
        "The programs in this table come from other projects, or are short scripts of this project that use other",
        "projects' libraries. ullage ran all programs of this table on emulated GPUs with torch",
        f"{importlib.metadata.version('torch')}. The programs ran with [generated weights and data](made_up.md), on a",
        "machine without the real weights and data.",
        "",
        "The column *compared with real weights* shows whether the peaks of every step are equal to those with a real",
        "checkpoint. The library that loads the checkpoint has also saved the real checkpoint. An empty cell means",
        "that the peaks were not compared. The column *host memory* has the resident memory of the program's largest",
        "process.",
        "",
        "| program | GPU | verdict, peak of allocated memory | compared with real weights | host memory | run time |",
        "|---|---|---|---|---|---|",
    ]
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save = SAVE.format(config=str(CONFIG), folder=str(folder / "real"))
        subprocess.run([sys.executable, "-c", save], check=True)
        for case in CASES:
            if options.only not in case.what:
                continue
            line, is_good = row(case, folder)
            print(line, flush=True)
            if not is_good:
                print(f"not as it should be: {case.what}\n{(folder / 'error').read_text()}", file=sys.stderr)
            failures += not is_good
            lines.append(line)
    if options.write:
        if options.only:
            lines = renewed(without_stamp(options.write.read_text()).splitlines(), lines)
        write_page(options.write, "\n".join(lines) + "\n", part=bool(options.only))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
