"""Print the test files of changed files, as arguments of pytest: `python tools/tests_of.py [FILES...]`.

Without files: those that differ from the branch main, committed or not. The tests of `src/ullage/FAMILY/PACKAGE` are
the test files of `tests/FAMILY/PACKAGE`, or of the next folder above that has any. Where none of them imports the
module that has changed, the test files that do are added. `tests/project/test_layers.py` is always among them.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ullage"
TESTS = ROOT / "tests"
ALWAYS = ("tests/project/test_layers.py",)
ELSEWHERE = {
    "src/ullage/report": "tests/golden",
    "src/ullage/__init__": "tests/api",
    "docs": "tests/project/test_docs.py",
    "README.md": "tests/project/test_docs.py",
    "CONTRIBUTING.md": "tests/project/test_docs.py",
    "Makefile": "tests/project/test_docs.py",
    "tools": "tests/project",
    "pyproject.toml": "tests/project",
    "CMakeLists.txt": "tests/project/test_package.py",
    "benchmarks": "tests/project/test_benchmarks.py",
    "benchmarks/our_gpus": "tests/our_gpus",
    "benchmarks/real_cards": "tests/real_cards",
    "deploy": "tests/running/export/test_deploy.py",
}
"""Tests of files that have no folder of the same name, by the beginning of the path; of several the longest counts."""


def changed() -> list[str]:
    """Return the files that differ from where this branch left main, and those that git does not know yet."""

    def lines(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    base = [*lines("merge-base", "HEAD", "main"), "HEAD"][0]  # where there is no main: what is not committed
    return [*lines("diff", "--name-only", base), *lines("ls-files", "--others", "--exclude-standard")]


def next_above(folder: Path) -> set[Path]:
    """Return the test files of a folder, or of the next one above it that has any."""
    while TESTS in folder.parents:
        if found := set(folder.glob("test_*.py")):
            return found
        folder = folder.parent
    return set()


def root_of(path: Path) -> Path | None:
    """Return the package or the tests, whichever a file is in."""
    return next((folder for folder in (PACKAGE, TESTS) if folder in path.parents), None)


def importing(path: Path, among: Iterable[Path]) -> set[Path]:
    """Return the files among these that import a module, or a name of it."""
    root = root_of(path)
    if root is None or path.suffix != ".py":
        return set()
    module = ".".join([root.name, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    pattern = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    return {each for each in among if pattern.search(each.read_text(encoding="utf-8"))}


def elsewhere(file: str) -> set[Path]:
    """Return the test files that a row of `ELSEWHERE` names."""
    begun = max((beginning for beginning in ELSEWHERE if file.startswith(beginning)), key=len, default=None)
    if begun is None:
        return set()
    place = ROOT / ELSEWHERE[begun]
    return set(place.glob("test_*.py")) if place.is_dir() else {place}


def tests_of(file: str) -> set[Path]:
    """Return the test files of one file, by its path from the root of the repository."""
    path = ROOT / file
    if path.match("test_*.py") and TESTS in path.parents:
        return {path} if path.exists() else set()  # it may have been removed
    root = root_of(path)
    found = (next_above(TESTS / path.parent.relative_to(root)) if root else set()) or elsewhere(file)
    return found if importing(path, found) else found | importing(path, TESTS.rglob("test_*.py"))


def main() -> None:
    """Print the files on one line: first those that import what has changed."""
    files = [str(Path(name).resolve().relative_to(ROOT)) for name in sys.argv[1:]] or changed()
    found = {ROOT / name for name in ALWAYS}.union(*map(tests_of, files))
    first = set().union(*(importing(ROOT / file, found) for file in files))
    print(*(path.relative_to(ROOT) for path in sorted(found, key=lambda path: (path not in first, path))))


if __name__ == "__main__":
    main()
