"""Advise scripts on cards on which they do not fit, and prove each answer from outside: `make advise`.

    python -m benchmarks.advise.run PUBLIC [--only TEXT] [--known] [--rows FOLDER] [--write docs/advised_scripts.md]

Of each script `ullage advise --patch` is asked. Git applies the patch in a copy, and the copy is predicted on the same
card with nothing changed from outside: it has to fit, and to need the bytes that were promised. PUBLIC is the folder of
`make public`, with its packages. A row is kept in FOLDER as soon as it is there, so that a run that was cut off goes
on; rows of another state of the installed package are measured again. With --known nothing is measured: the page has
the rows that are there, and says how many are not. Exit code 1 where an answer is missing or not proved.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import ullage
from benchmarks.advise.page import page_of
from benchmarks.advise.row import AdvisedRow
from benchmarks.public import run as public
from tools.stale_pages import write_page

HERE: Final = Path(__file__).parent
TOP: Final = HERE.parent.parent
ROOM: Final = "1TiB"
"""The memory of a card on which everything fits: bytes were promised for it where memory is not short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script, and a card on which it does not fit."""

    name: str
    gpu: str
    script: str
    """Its path below the top of the project, or of the public repository."""
    arguments: tuple[str, ...] = ()
    public: str = ""
    """The public script that this is, as `benchmarks/public/scripts.toml` calls it."""


def cases() -> list[Case]:
    """Return the cases of cases.toml."""
    table = tomllib.loads((HERE / "cases.toml").read_text())
    return [Case(**{**case, "arguments": tuple(case.get("arguments", ()))}) for case in table["cases"]]


class Bench:
    """Runs cases in folders of their own."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._public = folder
        self._pattern = pattern
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder / "packages"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def row(self, case: Case) -> AdvisedRow:
        """Advise one script, apply what was written, and predict that."""
        with tempfile.TemporaryDirectory() as made:
            given, mended = Path(made, "given"), Path(made, "mended")
            script = self._copied(case, given)
            shutil.copytree(given, mended)
            patch = Path(made, "advice.diff")
            began = time.monotonic()
            options = ["--gpu", case.gpu, "--patch", str(patch)]
            code, answer, error = self._ullage("advise", script, case, given, options)
            seconds = time.monotonic() - began
            row = AdvisedRow(name=case.name, gpu=case.gpu, arguments=list(case.arguments), seconds=round(seconds))
            if code not in (0, 1, 4):
                return row.with_problem(f"advise ended with {code}: {_last(error)}")
            row = row.with_answer(answer)
            if answer["best"] is None:
                return row.with_problem(f"no result: the verdict is {answer['verdict']}")
            if patch.exists():
                applied = subprocess.run(["git", "apply", str(patch)], cwd=mended, capture_output=True, text=True)
                if applied.returncode:
                    return row.with_problem(f"git apply: {_last(applied.stderr)}")
            return self._checked(row, script, case, mended, answer)

    def _checked(self, row: AdvisedRow, script: Path, case: Case, folder: Path, answer: dict[str, Any]) -> AdvisedRow:
        """Predict the mended script on the card, and where its bytes differ on one with room, which was measured."""
        told = _told(answer["written"]["command"])
        promised = [answer["best"][name] for name in ("peak_allocated_bytes", "peak_reserved_bytes")]
        for more in ((), ("--total-memory", ROOM)):
            options = ["--gpu", case.gpu, *told.options, *more]
            _, found, error = self._ullage("predict", script, case, folder, options, told.arguments)
            if not found:
                return row.with_problem(f"the mended script was not predicted: {_last(error)}")
            row = row.with_found(found, promised, is_card=not more)
            if row.is_equal:
                break
        return row

    def _copied(self, case: Case, folder: Path) -> Path:
        """Copy what a script needs into a folder that is a repository; return the script's path there."""
        if not case.public:
            folder.mkdir()
            shutil.copy(TOP / case.script, folder)
            script = Path(Path(case.script).name)
        else:
            table = tomllib.loads((HERE.parent / "public" / "scripts.toml").read_text())
            one = next(each for each in table["scripts"] if each["name"] == case.public)
            commit = table["repositories"][one["repository"]]
            repository = public.fetched(one["repository"], commit, self._pattern, self._public)
            (self._public / "data").mkdir(exist_ok=True)
            public.prepared(one, repository, self._public / "data", self._environment)
            shutil.copytree(repository, folder, ignore=shutil.ignore_patterns(".git"))
            script = Path(case.script)
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        return script

    def _ullage(
        self, command: str, script: Path, case: Case, folder: Path, options: list[str], more: tuple[str, ...] = ()
    ) -> tuple[int, dict[str, Any], str]:
        """Run a command of ullage in the script's folder; return its exit code, its answer and its errors."""
        words = [sys.executable, "-m", "ullage", command, "--json", *options, script.name, *case.arguments, *more]
        place = folder / script.parent
        done = subprocess.run(words, cwd=place, env=self._environment, capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


@dataclass(frozen=True, slots=True)
class _Told:
    """What the lines of the shell ask for."""

    options: list[str]
    arguments: tuple[str, ...]


def _told(command: str) -> _Told:
    """Read the lines of the shell that belong to an answer: variables that are set, and arguments of the script."""
    options: list[str] = []
    arguments: tuple[str, ...] = ()
    for line in command.splitlines():
        if line.startswith("export PYTORCH_CUDA_ALLOC_CONF="):
            options += ["--alloc-conf", line.partition("=")[2]]
        else:
            arguments = tuple(shlex.split(line.partition(" ... ")[2]))
    return _Told(options, arguments)


def _state() -> str:
    """Return a digest of the package that is installed."""
    top = Path(ullage.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(each for each in top.rglob("*") if each.is_file() and each.suffix != ".pyc"):
        digest.update(file.relative_to(top).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"


def main() -> int:
    """Measure the rows that are not there yet, print all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("public", type=Path)
    parser.add_argument("--from", dest="pattern", default=os.environ.get("ULLAGE_REPOSITORIES", public.GITHUB))
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--known", action="store_true", help="measure nothing, and take the rows that are there")
    parser.add_argument("--rows", type=Path, help="where rows are kept (default: PUBLIC/advised)")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    kept = options.rows or options.public / "advised"
    kept.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.public.absolute(), options.pattern)
    rows = []
    for case in cases():
        if options.only not in case.name:
            continue
        key = json.dumps([_state(), asdict(case)])
        file = kept / f"{case.name.replace(' ', '-').replace('/', '-')}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("key") != key and options.known:
            continue
        if known.get("key") != key:
            known = {"key": key, "row": asdict(bench.row(case))}
            file.write_text(json.dumps(known, indent=1))
        rows.append(AdvisedRow(**known["row"]))
        print(rows[-1].text, flush=True)
    if options.write and not options.only:
        write_page(options.write, page_of(rows, missing=len(cases()) - len(rows)))
    return 0 if all(row.is_proved for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
