"""Predict commands as people type them, and put each beside the plain script of the same training: `make commands`.

    python -m benchmarks.commands.run PACKAGES [--only TEXT] [--kept FILE] [--write docs/commands.md]

PACKAGES is the folder that tools/packages.sh has filled from requirements*.txt. What was predicted is kept in FILE and
not run again while the package's sources and what is run stay as they are, so that it can be run in pieces. Exits 1
where a command has another peak than its script, or no peak.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from tools.stale_pages import write_page

from .cases import HERE, SCRIPTS, Case, cases

ROOT: Final = HERE.parents[1]
_BEGIN, _END = "<!-- commands -->\n", "<!-- end of commands -->"
TABLE: Final = """
The commands of this table ran on an emulated {gpu} with torch {torch}.

| command | ranks | allocated | reserved | compared with the script |
|---|---|---|---|---|
{rows}

For {equal} of {count} commands, the peaks of allocated and of reserved memory equal those of the plain script, to the
byte.

"""
FIGURES: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "world_size", "torch")


class Predictions:
    """Predictions of command lines, kept in a file for one state of the package's sources."""

    def __init__(self, gpu: str, environment: dict[str, str], kept: Path | None) -> None:
        self.gpu = gpu
        self._environment = environment
        self._kept = kept
        self._state = _state()
        lines = kept.read_text().splitlines() if kept and kept.exists() else []
        self._found = {entry["key"]: entry["figures"] for entry in map(json.loads, lines)}

    def of(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the figures of a command line, or the error that it ended with."""
        key = json.dumps([self._state, self.gpu, *words])
        if key not in self._found:
            figures = self._predicted(words)
            self._found[key] = figures
            if self._kept and "error" not in figures:
                self._kept.parent.mkdir(parents=True, exist_ok=True)
                with self._kept.open("a") as file:
                    file.write(json.dumps({"key": key, "figures": figures}) + "\n")
        return self._found[key]

    def _predicted(self, words: Sequence[str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "ullage", "predict", "--gpu", self.gpu, "--json", *words]
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            # New ones: some refuse a folder in which they have run before, and what was compiled is not compiled again.
            environment = self._environment | {"TMPDIR": temporary}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        if done.returncode not in (0, 1, 4):  # 4: unknown, with figures
            print(done.stderr[-4000:], file=sys.stderr)
            said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
            return {"error": said[0] if said else f"exit {done.returncode}"}
        found = json.loads(done.stdout)
        return {name: found.get(name) for name in FIGURES}


def _state() -> str:
    """Return what is another text when the package's sources, or what is run here, have changed."""
    package = subprocess.check_output([ROOT / "tools" / "state.sh"], text=True).split()[0]
    parts = [file for file in sorted(HERE.rglob("*")) if file.suffix in (".yaml", ".json", ".ipynb", ".txt")]
    parts += sorted(SCRIPTS.glob("*.py"))
    return hashlib.sha256(b"".join([package.encode(), *(file.read_bytes() for file in parts)])).hexdigest()


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


def _environment(packages: Path, folder: Path) -> dict[str, str]:
    """Return the environment of every prediction; the console scripts are written into the folder."""
    commands = folder / "commands"
    commands.mkdir()
    _console_scripts(packages, commands)
    return os.environ | {
        "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(packages)]),
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",  # LLaMA-Factory's: it asks for an older datasets and peft
    }


def _row(case: Case, predictions: Predictions) -> tuple[str, bool, str]:
    """Return a row of the table, whether the peaks are equal, and the version of torch."""
    command = predictions.of((*case.options, *case.command))
    plain = predictions.of((*case.options, *case.plain))
    figures = [command.get(name) or 0 for name in FIGURES[:2]]
    same = bool(figures[0]) and figures == [plain.get(name) for name in FIGURES[:2]]
    wrong = command.get("error") or plain.get("error") or f"{plain.get(FIGURES[0]):,}, {plain.get(FIGURES[1]):,}"
    beside = "equal" if same else f"**differs**: {wrong}"
    row = f"| `{case.name}` | {command.get('world_size') or 1} | {figures[0]:,} | {figures[1]:,} | {beside} |"
    return row, same, command.get("torch") or ""


def main() -> int:
    """Run the cases, print the rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", default="A100")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    packages = options.packages.absolute()
    rows, equal, torch = [], 0, ""
    with tempfile.TemporaryDirectory() as folder:
        predictions = Predictions(options.gpu, _environment(packages, Path(folder)), options.kept)
        for case in (case for case in cases(packages) if options.only in case.name):
            row, same, version = _row(case, predictions)
            rows.append(row)
            equal += same
            torch = version or torch
            print(row, flush=True)
    if options.write and not options.only:
        table = TABLE.format(gpu=options.gpu, torch=torch, rows="\n".join(rows), equal=equal, count=len(rows))
        write_page(options.write, table, between=(_BEGIN, _END))
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
