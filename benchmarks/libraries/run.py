"""Load CUDA libraries that are used with torch on an emulated GPU, run each, and write the table of the docs.

    python -m benchmarks.libraries.run FOLDER ENVIRONMENTS [--only NAME] [--from URL] [--write docs/libraries.md]

Each library of `libraries.toml` is installed into FOLDER/NAME, beside the torch of ENVIRONMENTS/torch-VERSION-pyX.Y
(made by tools/environment.sh where it is missing), without the nvidia-* wheels that a card would need. A fresh process
then emulates a card, loads the library and runs `scripts/NAME.py`. Exit code 1 if one that is marked as running does
not, or counts other bytes than its shapes say. It does not know the libraries' values: nothing is computed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.stale_pages import write_page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = f"py{sys.version_info[0]}.{sys.version_info[1]}"
SECONDS = 480  # for one script: kernels are compiled in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one library."""

    installed: bool
    answer: dict[str, Any] | None
    error: str
    seconds: float

    @property
    def ran(self) -> bool:
        """Whether it ran and counted what its shapes say."""
        return self.answer is not None and all(
            check["counted_bytes"] == check["expected_bytes"] for check in self.answer["checks"]
        )


@cache
def environment_of(version: str, environments: Path) -> Path:
    """The environment with this torch and the project, made or brought up to date."""
    folder = environments / f"torch-{version}-{PYTHON}"
    python = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "tools/environment.sh", version, folder], check=True, env=python)
    return folder


def installed(requirements: list[str], sources: list[str], folder: Path, python: Path, **more: str) -> str:
    """Install what is not there yet; the last line of pip's error, empty where all went well.

    `sources` are built here, with what `requirements` put beside them; `more` are variables for that.
    """
    stamp = folder / ".ready"
    wanted = "\n".join([*requirements, *sources])
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clean = {name: text for name, text in os.environ.items() if name != "PIP_FIND_LINKS"} | more
    clean |= {"PIP_CONFIG_FILE": "/dev/null", "PYTHONPATH": str(folder)}
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "install", "--no-deps", "--target", folder]
    for option, packages in (("--only-binary=:all:", requirements), ("--no-build-isolation", sources)):
        if not packages:
            continue
        ended = subprocess.run([*command, option, *packages], env=clean, capture_output=True, text=True, check=False)
        if ended.returncode:
            lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
            return (lines or ["ERROR: pip failed"])[-1].removeprefix("ERROR: ")
    stamp.write_text(wanted)
    return ""


def toolkit(wheels: list[str], folder: Path, python: Path) -> dict[str, str]:
    """The variables by which nvcc of NVIDIA's wheels is found, laid out as a toolkit on disk."""
    error = installed(wheels, [], folder, python)
    if error:
        sys.exit(f"nvcc cannot be installed: {error}")
    home = next((folder / "nvidia").glob("cu1*"))
    links = ((home / "lib64", "lib"), (home / "lib/libcudart.so", next((home / "lib").glob("libcudart.so.*")).name))
    for link, target in links:  # wheels have neither the old name of the folder nor the linker's of the library
        if not link.exists():
            link.symlink_to(target)
    return {"CUDA_HOME": str(home), "MAX_JOBS": "2", "PATH": f"{python.parent}:{os.environ['PATH']}"}


def tried(library: dict[str, Any], nvcc: list[str], folder: Path, environments: Path) -> Outcome:
    """Install one library and run its script."""
    began = time.monotonic()
    python = environment_of(library["torch"], environments) / "bin/python"
    place = folder / library["name"]
    compiler = toolkit(nvcc, folder / "nvcc", python) if library.get("nvcc") else {}
    error = installed(library["requirements"], library.get("sources", []), place, python, **compiler)
    if error or not (HERE / f"scripts/{library['name']}.py").exists():
        return Outcome(installed=not error, answer=None, error=error, seconds=time.monotonic() - began)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        path = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TORCH_EXTENSIONS_DIR": f"{scratch}/built"}
        environment |= compiler
        command = [python, HERE / "one.py", HERE / f"scripts/{library['name']}.py", library["card"], answer]
        try:
            ended = subprocess.run(
                [*command, library.get("distribution", "")],
                cwd=scratch,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            error = ended.stderr if ended.returncode else ""
            if ended.returncode < 0:
                error += f"\nended by signal {-ended.returncode}"
        except subprocess.TimeoutExpired:
            error = f"not done after {SECONDS} s"
        found = json.loads(answer.read_text()) if answer.exists() and not error else None
    if library.get("large"):
        shutil.rmtree(place)
    return Outcome(installed=True, answer=found, error=error, seconds=time.monotonic() - began)


def mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def row_of(library: dict[str, Any], outcome: Outcome) -> str:
    """One line of the table."""
    answer = outcome.answer
    asked = next(iter([*library.get("sources", []), *library["requirements"]]), "").partition("==")[2]
    version = (answer or {}).get("version") or asked
    what, allocated, outside, checks = library["what"], "", "", ""
    if answer:
        allocated, outside = mebibytes(answer["allocated_peak_bytes"]), mebibytes(answer["outside_bytes"])
        if not answer["outside_bytes"]:
            outside = "none"
        checks = "; ".join(
            f"{check['what']}: {check['counted_bytes']:,}"
            + ("" if check["counted_bytes"] == check["expected_bytes"] else f" (not {check['expected_bytes']:,})")
            for check in answer["checks"]
        )
        if answer["unwritten"]:
            checks += "; answered with “not supported”: " + ", ".join(sorted(answer["unwritten"]))
    state = "yes" if outcome.ran else "no: " + (library.get("why_not") or last_line(outcome.error))
    place = "yes" if outcome.installed else "no"
    name = f"{library['title']} {version}".strip()
    return f"| {name} | {library['torch']} | {place} | {what} | {state} | {allocated} | {outside} | {checks} |"


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it counts other bytes than its shapes say"


HEAD = """# Which CUDA libraries run on an emulated GPU

{ran} of {tried} packages with their own CUDA code run on an emulated GPU. The packages are unmodified and come from
PyPI. The nvidia-* wheels that a real GPU would need are not installed, except those that faiss, Numba and nvcc
require. Each package was imported in a process with an emulated GPU, and ran the test that the column "what runs"
describes. No kernel runs on an emulated GPU, so these tests do not check computed values. The
following list explains the memory columns of the table.

* **allocated**: the peak of memory that PyTorch's allocator allocated during the test.
* **outside**: the peak of GPU memory in use outside PyTorch's allocator and outside the CUDA context.
* **to the byte**: allocations in the test whose size in bytes equals the size that was computed from the tensor
  shapes. An empty cell in the column "to the byte" means that no size could be
  computed from the shapes.

| library | torch | installs | what runs | runs | allocated | outside | to the byte |
|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Every library of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--only", default="", help="libraries of this name")
    parser.add_argument("--from", dest="index", help="another index of packages than PyPI")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    table = tomllib.loads((HERE / "libraries.toml").read_text())
    libraries = [library for library in table["libraries"] if options.only in ("", library["name"])]
    if not libraries:
        names = ", ".join(each["name"] for each in table["libraries"])
        sys.exit(f"no library is named {options.only}; there are {names}")
    if options.index:
        os.environ["PIP_INDEX_URL"] = options.index
    rows, failures, ran = [], 0, 0
    for library in libraries:
        outcome = tried(library, table["nvcc"], options.folder.resolve(), options.environments.resolve())
        ran += outcome.ran
        rows.append(row_of(library, outcome))
        print(f"{rows[-1]} {outcome.seconds:.0f} s", flush=True)
        if outcome.ran == ("why_not" in library):
            failures += 1
            state = "runs, though the table says why not" if outcome.ran else "does not run"
            print(f"{library['name']}: {state}\n{outcome.error}", file=sys.stderr)
    if options.write:
        write_page(options.write, HEAD.format(ran=ran, tried=len(libraries)) + "\n".join(rows) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
