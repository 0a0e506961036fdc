"""What a user's type checker says of the package: nothing of a program that is right; else what is wrong."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ullage

HERE = Path(__file__).parent
RIGHT, WRONG = HERE / "typed_program.py", HERE / "wrongly_typed_program.py"
ROOT = HERE.parents[1]
# Torch's own types take half a minute to read. `make lint` has read them, and what it left counts for equal options.
OPTIONS = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / 'src/.mypy_cache'}"]


def mypy(folder: Path) -> dict[Path, set[int]]:
    """Check both programs, strictly, where the package is installed; lines with an error, by file."""
    command = [sys.executable, "-m", "mypy", *OPTIONS, "--no-error-summary", RIGHT, WRONG]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found: dict[Path, set[int]] = {RIGHT: set(), WRONG: set()}
    for file, line in re.findall(r"^(.+?):(\d+): error: ", done.stdout, re.MULTILINE):
        found[HERE / Path(file).name].add(int(line))  # an error from the cache has the path that was shown then
    return found


def pyright(folder: Path) -> dict[Path, set[int]]:
    """The same by pyright, in the build of it that needs no download when it runs."""
    pytest.importorskip("basedpyright", reason="basedpyright is not installed: tools/environment.sh installs it")
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "standard", "include": [str(RIGHT), str(WRONG)]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--project", str(config)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[Path, set[int]] = {RIGHT: set(), WRONG: set()}
    for error in json.loads(done.stdout)["generalDiagnostics"]:
        if error["severity"] == "error":
            found[Path(error["file"])].add(error["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("check", [mypy, pyright])
def test_what_a_program_may_do_has_types_and_what_it_may_not_is_an_error(
    check: Callable[[Path], dict[Path, set[int]]], tmp_path: Path
) -> None:
    marked = {number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if "# wrong: " in line}
    assert len(marked) > 10
    found = check(tmp_path)
    assert found == {RIGHT: set(), WRONG: marked}


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(ullage.__file__).parent / "py.typed").exists()
