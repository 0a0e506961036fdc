"""Predict unmodified public scripts on three GPUs: fetch them, generate data, predict, and write the docs table.

    python -m benchmarks.public.run FOLDER [--from PATTERN] [--only TEXT] [--write docs/public_scripts.md]

FOLDER keeps what is fetched and made, outside the tree. PATTERN is where a repository is cloned from, with {owner} and
{name}: a mirror's folder will do where GitHub cannot be reached. Exit code 1 if a script was not predicted on every
card.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.stale_pages import write_page

HERE = Path(__file__).parent
CARDS = ("T4", "RTX 4090", "H100")
GITHUB = "https://github.com/{owner}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One script on one card."""

    seconds: float
    answer: dict[str, Any] | None
    error: str

    @property
    def text(self) -> str:
        """A cell of the table: verdict, allocated and reserved peak, seconds."""
        if self.answer is None:
            return f"**not predicted**: {self.error.strip().splitlines()[-1] if self.error.strip() else 'no answer'}"
        verdict = self.answer["verdict"].replace("unknown", "cannot be judged")
        peak = self.answer["peak_allocated_bytes"] / 2**30
        beside = self.answer.get("eager")
        without = f" (without compile {beside['peak_allocated_bytes'] / 2**30:.2f})" if beside else ""
        return f"{verdict}, {peak:.2f} GiB{without}, {self.seconds:.0f} s"


def fetched(repository: str, commit: str, pattern: str, folder: Path) -> Path:
    """The repository at its commit, cloned when it is not there yet."""
    owner, name = repository.split("/")
    place = folder / name
    if (
        place.exists()
        and subprocess.run(["git", "-C", str(place), "cat-file", "-e", commit], stderr=subprocess.DEVNULL).returncode
    ):
        shutil.rmtree(place)  # an old clone, from before that commit
    if not place.exists():
        print(f"fetching {repository}", file=sys.stderr)
        partial = folder / f"{name}.part"
        shutil.rmtree(partial, ignore_errors=True)
        clone = ["git", "clone", "--quiet", "--no-checkout", pattern.format(owner=owner, name=name), str(partial)]
        subprocess.run(clone, check=True)
        # Data sets that lie beside the scripts are made up like all others.
        sparse = ["git", "-C", str(partial), "sparse-checkout", "set", "--no-cone", "/*", "!/*/data/wikitext-2/"]
        subprocess.run(sparse, check=True)
        partial.rename(place)
    checkout = ["git", "-C", str(place), "-c", "advice.detachedHead=false", "checkout", "--quiet", "--force", commit]
    subprocess.run(checkout, check=True)
    return place


def prepared(script: dict[str, Any], repository: Path, data: Path, environment: dict[str, str]) -> None:
    """The script's data, made when it is not there yet."""
    for kind in script.get("data", []):
        done = data / f".{kind}-{repository.name}"
        if not done.exists():
            subprocess.run([sys.executable, HERE / "data.py", kind, data, repository], check=True, env=environment)
            done.touch()


def predicted(script: dict[str, Any], card: str, repository: Path, data: Path, environment: dict[str, str]) -> Outcome:
    """Run `ullage predict` as a user would, in the script's own folder."""
    arguments = [argument.format(data=data) for argument in script["arguments"]]
    command = [
        sys.executable,
        "-m",
        "ullage",
        "predict",
        "--gpu",
        card,
        "--json",
        *script.get("options", []),
        *arguments,
    ]
    path = [str(repository / entry) for entry in script.get("python_path", [])]
    began = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=repository / script.get("folder", "."),
        env={**environment, "PYTHONPATH": os.pathsep.join([*path, environment["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    answer = json.loads(ended.stdout) if ended.returncode in (0, 1, 4) and ended.stdout.strip() else None
    return Outcome(seconds=seconds, answer=answer, error=ended.stderr)


def main() -> int:
    """Every script on every card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="pattern", default=os.environ.get("ULLAGE_REPOSITORIES", GITHUB))
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "packages"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    table = tomllib.loads((HERE / "scripts.toml").read_text())
    lines = [
        "# Do unmodified public scripts run on an emulated GPU?",
        "",
        "Yes. The table shows predictions of public training scripts with generated data. The scripts are unmodified,",
        "at the commits that `benchmarks/public/scripts.toml` lists. `ullage predict` made these predictions with "
        f"torch {importlib.metadata.version('torch')} on a",
        "machine without a GPU. Each cell of the table has the verdict, the peak of allocated memory, and the time",
        "that `ullage predict` took.",
        "",
        "| script | " + " | ".join(CARDS) + " |",
        "|---" * (1 + len(CARDS)) + "|",
    ]
    failures = 0
    for script in table["scripts"]:
        if options.only not in script["name"]:
            continue
        repository = fetched(script["repository"], table["repositories"][script["repository"]], options.pattern, folder)
        prepared(script, repository, data, environment)
        outcomes = [predicted(script, card, repository, data, environment) for card in CARDS]
        failures += sum(outcome.answer is None for outcome in outcomes)
        for card, outcome in zip(CARDS, outcomes, strict=True):
            print(f"{script['name']} | {card} | {outcome.text}", flush=True)
            if outcome.answer is None:
                print(outcome.error, file=sys.stderr)
        lines.append(f"| {script['name']} | " + " | ".join(outcome.text for outcome in outcomes) + " |")
    if options.write:
        write_page(options.write, "\n".join(lines) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
