"""Predict commands as people type them, and put each beside the plain script of the same training: `make commands`.

    python benchmarks/commands/run.py PACKAGES [--only TEXT] [--write docs/commands.md]

PACKAGES is the folder that tools/packages.sh has filled from requirements*.txt. Exits 1 where a command has another
peak than its script, or no peak.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
SCRIPTS: Final = HERE / "scripts"
PAGE: Final = """# Commands

`ullage predict` runs what a person types. Each command beside the plain script of the same training, on an emulated
{gpu} with torch {torch}: allocated and reserved peaks in bytes. `make commands` writes this page.

| command | ranks | allocated | reserved | beside the script |
|---|---|---|---|---|
{rows}

Of the processes that a launcher starts one runs, as a rank without the others (`--rank`); `--processes real` runs all.
{equal} of {count} are equal to the byte.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, and the words of the plain script that trains the same."""

    name: str
    command: Sequence[str]
    plain: Sequence[str]
    options: Sequence[str] = ()
    """Options of ullage for both."""


def _cases(packages: Path) -> list[Case]:
    ranks, zero, cli = (str(SCRIPTS / f"{name}.py") for name in ("ranks", "zero", "lightning_cli"))
    fit = ("fit", "--trainer.max_steps", "50", "--trainer.logger", "false", "--trainer.enable_checkpointing", "false")
    made_up = ("--random-weights", "--config", str(HERE / "tiny-llama"))
    trl = ("--model_name_or_path", "nobody/tiny-llama", "--dataset_name", "nobody/made-up", "--output_dir", "out")
    trl = (*trl, "--per_device_train_batch_size", "2", "--report_to", "none", "--max_length", "256")
    found = [
        Case(name="python -m", command=("-m", "ranks"), plain=(ranks,)),
        Case(name="python", command=("python", ranks), plain=(ranks,)),
        Case(name="Lightning CLI", command=("python", cli, *fit), plain=(cli, *fit)),
    ]
    for count in (2, 8):
        world = ("--world-size", str(count), ranks)
        torchrun = ("torchrun", "--nproc-per-node", str(count), ranks)
        accelerate = ("accelerate", "launch", "--multi_gpu", "--num_processes", str(count), ranks)
        found.append(Case(name=f"torchrun, {count}", command=torchrun, plain=world))
        found.append(Case(name=f"accelerate launch, {count}", command=accelerate, plain=world))
    for stage in (1, 2, 3):
        found.append(
            Case(
                name=f"deepspeed, ZeRO {stage}",
                command=("deepspeed", "--num_gpus", "2", zero, "--stage", str(stage)),
                plain=("--world-size", "2", zero, "--stage", str(stage)),
            )
        )
    for name, form in (("sft", "text"), ("dpo", "preference")):
        found.append(
            Case(
                name=f"trl {name}",
                command=("trl", name, *trl),
                plain=(str(packages / "trl" / "scripts" / f"{name}.py"), *trl),
                options=(*made_up, "--made-up-data", f"{form}:length=256,rows=64"),
            )
        )
    return found


def _console_scripts(packages: Path, folder: Path) -> None:
    """Write the commands that the packages declare: pip leaves out those of a second run into one folder."""
    for each in distributions(path=[str(packages)]):
        for entry in each.entry_points.select(group="console_scripts"):
            file = folder / entry.name
            code = f"import sys\nfrom {entry.module} import {entry.attr.partition('.')[0]}\nsys.exit({entry.attr}())\n"
            file.write_text(f"#!{sys.executable}\n{code}")
            file.chmod(0o755)
    # DeepSpeed has scripts in place of such declarations.
    (folder / "deepspeed").write_text(f"#!{sys.executable}\nfrom deepspeed.launcher.runner import main\nmain()\n")
    (folder / "deepspeed").chmod(0o755)


def _predicted(words: Sequence[str], gpu: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "ullage", "predict", "--gpu", gpu, "--json", *words]
    with tempfile.TemporaryDirectory() as folder:  # some refuse one in which they have run before
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if done.returncode not in (0, 1, 4):  # 4: unknown, with figures
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Run the cases, print the rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", default="A100")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows, equal, torch = [], 0, ""
    cases = [case for case in _cases(options.packages.absolute()) if options.only in case.name]
    with tempfile.TemporaryDirectory() as folder:
        commands = Path(folder, "commands")
        commands.mkdir()
        _console_scripts(options.packages, commands)
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        modules = os.pathsep.join([str(SCRIPTS), str(options.packages.absolute())])
        environment = os.environ | {"PATH": path, "PYTHONPATH": modules, "TMPDIR": folder, "HF_HUB_OFFLINE": "1"}
        for case in cases:
            command = _predicted((*case.options, *case.command), options.gpu, environment)
            plain = _predicted((*case.options, *case.plain), options.gpu, environment)
            figures = [command.get(name, 0) for name in ("peak_allocated_bytes", "peak_reserved_bytes")]
            same = bool(figures[0]) and figures == [plain.get("peak_allocated_bytes"), plain.get("peak_reserved_bytes")]
            equal += same
            torch = command.get("torch", torch)
            wrong = command.get("error") or plain.get("error") or f"{plain.get('peak_allocated_bytes'):,}"
            beside = "equal" if same else f"**differs**: {wrong}"
            rows.append(
                f"| {case.name} | {command.get('world_size') or 1} | {figures[0]:,} | {figures[1]:,} | {beside} |"
            )
            print(rows[-1], flush=True)
    if options.write:
        options.write.write_text(
            PAGE.format(gpu=options.gpu, torch=torch, rows="\n".join(rows), equal=equal, count=len(rows))
        )
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
