"""Build the sdist and the wheels into dist/, and try each wheel where no compiler can be found: `make wheel`.

    python tools/wheel.py WORK --torch 2.15.0 [--only 3.13]

The wheels are built from the sdist; auditwheel checks what they ask of the system and names it, and may change nothing
else. Each is installed for every Python that can be had, beside torch, in an environment made anew, and the README's
first command has to do the same in all of them. WORK keeps the tools, the logs and the environments. Exits 1 where one
fails; a Python that could not be had is told, and is no failure.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What GCC 12 on a system with glibc 2.36 needs. A newer system must not raise it unnoticed: auditwheel refuses then.
PLATFORM = "manylinux_2_34_x86_64"
TOOLS = ("uv>=0.9", "auditwheel>=6.4", "patchelf>=0.17", "abi3audit>=0.0.20")
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "nvcc")
BEGAN = time.monotonic()


class Failed(Exception):
    """Something is not as it has to be, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An interpreter to build or to try with."""

    version: str
    path: Path
    origin: str
    has_headers: bool


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f} s] {text}", flush=True)


def run(*command: str | Path, log: Path, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed; all it said is added to `log`."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    with log.open("a") as file:
        file.write(f"$ {shlex.join(map(str, command))}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise Failed(
            f"`{Path(command[0]).name} {command[1]}` ended with exit code {done.returncode}: {last} (see {log})"
        )
    return done.stdout


def make_tools(work: Path, log: Path) -> Path:
    """Return the folder with uv, auditwheel, patchelf and abi3audit."""
    programs, stamp = work / "tools" / "bin", work / "tools" / ".ready"
    if not stamp.exists() or stamp.read_text() != str(TOOLS):
        say("fetching uv, auditwheel, patchelf and abi3audit")
        venv.create(work / "tools", clear=True, with_pip=True)
        plain = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
        plain["PIP_CONFIG_FILE"] = os.devnull
        run(programs / "python", "-m", "pip", "--quiet", "install", *TOOLS, log=log, environment=plain)
        stamp.write_text(str(TOOLS))
    return programs


# ---- the Pythons


def find_python(version: str, work: Path, tools: Path, log: Path) -> Python:
    """Find an interpreter: this machine's, python-build-standalone's by uv, or Debian's packages unpacked."""
    uv, patchelf = tools / "uv", tools / "patchelf"
    debian, standalone = work / f"debian-{version}", work / "pythons"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}")):
        return described(version, path, "pyenv")
    reasons = []
    ways: dict[str, tuple[str | Path, ...]] = {
        "this machine's": (uv, "python", "find", "--no-project", "--no-python-downloads", version),
        "python-build-standalone": (uv, "python", "install", "--install-dir", standalone, version),
        "Debian's packages": (ROOT / "tools" / "debian_python.sh", version, debian, patchelf),
    }
    for origin, command in ways.items():
        try:
            told = run(*command, log=log).strip()
        except Failed as error:
            reasons.append(f"{origin}: {error}")
            continue
        if origin == "Debian's packages":
            return described(version, debian / "usr" / "bin" / f"python{version}", origin)
        if origin == "python-build-standalone":
            return described(version, next(standalone.glob(f"cpython-{version}*/bin/python{version}")), origin)
        return described(version, Path(told), origin)
    raise Failed(f"Python {version} could not be had:\n  " + "\n  ".join(reasons))


def described(version: str, path: Path, origin: str) -> Python:
    """What is known of an interpreter that was found."""
    code = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    told = subprocess.run([path, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return Python(version=version, path=path, origin=origin, has_headers=told == "True")


def find_pythons(work: Path, tools: Path, log: Path) -> list[Python]:
    """Find all that can be had, and say which could not."""
    found = []
    for version in PYTHONS:
        try:
            python = find_python(version, work, tools, log)
        except Failed as error:
            say(str(error))
        else:
            say(f"Python {version}: {python.origin}, {python.path}")
            found.append(python)
    return found


def tag_of(version: str) -> str:
    """Which wheel a Python takes: nanobind has a stable ABI from 3.12 on."""
    return "cp311-cp311" if version == "3.11" else "cp312-abi3"


# ---- building


def build(asked: list[str], pythons: list[Python], work: Path, tools: Path, log: Path) -> list[Path]:
    """Build the sdist, and of it the wheels that the versions asked for take; return those in dist/."""
    for old in (DIST, work / "built"):
        shutil.rmtree(old, ignore_errors=True)
    say("building the sdist")
    run(tools / "uv", "build", "--sdist", "--out-dir", DIST, ROOT, log=log)
    (sdist,) = DIST.glob("*.tar.gz")
    say(f"  {sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
    for tag in sorted({tag_of(version) for version in asked}):
        python = next((each for each in pythons if each.has_headers and tag_of(each.version) == tag), None)
        if python is None:
            raise Failed(f"no Python with its headers (Debian: python3-dev) was found to build the wheel {tag} with")
        say(f"building the wheel {tag} from the sdist, with Python {python.version}")
        run(tools / "uv", "build", "--wheel", "--python", python.path, "--out-dir", work / "built", sdist, log=log)
    return [repaired(wheel, tools, log) for wheel in sorted((work / "built").glob("*.whl"))]


def repaired(built: Path, tools: Path, log: Path) -> Path:
    """Give a wheel the name of the systems that it runs on, in dist/; its files stay as they are."""
    with_patchelf = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = (tools / "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", DIST, built)
    run(*command, log=log, environment=with_patchelf)
    (wheel,) = DIST.glob(f"{built.name.removesuffix('linux_x86_64.whl')}*.whl")
    before, after = contents(built), contents(wheel)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    # A library that was taken in, renamed or given another run path is none that torch and CUDA's other users find.
    foreign = sorted(name for name in changed if not name.endswith((".dist-info/WHEEL", ".dist-info/RECORD")))
    if foreign:
        raise Failed(f"auditwheel changed files of {wheel.name}: {', '.join(foreign)}")
    if "abi3" in wheel.name:
        run(tools / "abi3audit", "--strict", wheel, log=log)
    say(f"  {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(after)} files")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


# ---- trying


def try_wheel(python: Python, wheel: Path, torch: str, work: Path, tools: Path) -> str:
    """Install a wheel beside torch, without a compiler, and return what the README's first command prints."""
    place, log = work / f"py{python.version}", work / f"py{python.version}.log"
    shutil.rmtree(place, ignore_errors=True)
    log.unlink(missing_ok=True)
    programs = place / "environment" / "bin"
    run(tools / "uv", "venv", "--no-project", "--python", python.path, programs.parent, log=log)
    bare = {"PATH": str(programs), "HOME": str(place)}
    if found := [name for name in COMPILERS if shutil.which(name, path=bare["PATH"])]:
        raise Failed(f"the environment is to be without a compiler, and has {', '.join(found)}")
    install = (tools / "uv", "pip", "install", "--python", programs / "python", "--only-binary", ":all:")
    quiet = os.environ | {"PATH": bare["PATH"]}
    run(*install, wheel, log=log, environment=quiet, cwd=place)
    run(*install, "--no-deps", f"torch=={torch}", log=log, environment=quiet, cwd=place)
    code = "import importlib.metadata as m; print(*m.requires('torch'), sep='\\n')"
    wanted = run(programs / "python", "-c", code, log=log, environment=bare, cwd=place).splitlines()
    light = [each for each in wanted if "extra ==" not in each and not each.startswith(("nvidia-", "cuda-"))]
    run(*install, *light, log=log, environment=quiet, cwd=place)  # the emulator stands in for NVIDIA's
    check_face(programs, wheel, log, bare)
    command = first_command()
    say(f"  {shlex.join(command)}")
    return run(programs / command[0], *command[1:], log=log, environment=bare)


def check_face(programs: Path, wheel: Path, log: Path, bare: dict[str, str]) -> None:
    """The version is the wheel's wherever it is asked, and the package says that it is typed."""
    code = (
        "import importlib.metadata, importlib.resources, ullage; "
        "typed = importlib.resources.files('ullage').joinpath('py.typed').is_file(); "
        "print(ullage.__version__, importlib.metadata.version('ullage'), typed)"
    )
    version = wheel.name.split("-")[1]
    told = run(programs / "python", "-c", code, log=log, environment=bare).split()
    told += run(programs / "ullage", "--version", log=log, environment=bare).split()
    if told != [version, version, "True", "ullage", version]:
        raise Failed(f"{wheel.name} is installed, and tells {told} of its version and types")


def first_command() -> list[str]:
    """The command that the README has below `pip install`."""
    found = re.search(r"^pip install .*\n(ullage .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    if not found:
        raise Failed("README.md no longer has a line `ullage ...` below `pip install ...`, which is tried here")
    return shlex.split(found[1])


def answer_of(printed: str) -> list[str]:
    """Return the parts of a prediction that are equal for all Python versions; host memory includes Python itself."""
    return [part.strip() for part in printed.split("\n\n") if not part.lstrip().startswith("Host memory")]


def try_all(pythons: list[Python], wheels: list[Path], torch: str, work: Path, tools: Path) -> list[str]:
    """Try every wheel; return what went wrong."""
    wrong = []
    first: tuple[str, str] | None = None
    for python in pythons:
        wheel = next(each for each in wheels if f"-{tag_of(python.version)}-" in each.name)
        say(f"Python {python.version}: installing {wheel.name} beside torch {torch}, without a compiler")
        try:
            printed = try_wheel(python, wheel, torch, work, tools)
        except Failed as error:
            wrong.append(f"Python {python.version}: {error}")
            continue
        say(f"  {next((line.strip() for line in printed.splitlines() if line.strip()), 'nothing')}")
        first = first or (python.version, printed)
        if answer_of(printed) != answer_of(first[1]):
            wrong.append(f"Python {python.version} prints another answer than {first[0]}: the ends of {work}/py*.log")
    tried = {tag_of(python.version) for python in pythons}
    untried = [wheel for wheel in wheels if not any(f"-{tag}-" in wheel.name for tag in tried)]
    return wrong + [f"{wheel.name} was not tried: no Python for it was found" for wheel in untried]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--torch", required=True, help="the version that the wheels are tried beside")
    parser.add_argument("--only", help="versions of Python, instead of all: '3.11 3.14'")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    log = work / "build.log"
    log.unlink(missing_ok=True)
    asked = options.only.split() if options.only else list(PYTHONS)
    if unknown := set(asked) - set(PYTHONS):
        parser.error(f"--only {' '.join(sorted(unknown))}: wheels are built for {', '.join(PYTHONS)}")
    try:
        tools = make_tools(work, log)
        pythons = find_pythons(work, tools, log)
        wheels = build(asked, pythons, work, tools, log)
        pythons = [python for python in pythons if python.version in asked]
        wrong = try_all(pythons, wheels, options.torch, work, tools)
    except Failed as error:
        sys.exit(f"error: {error}")
    for each in wrong:
        say(f"FAILED  {each}")
    if wrong:
        sys.exit(1)
    tried = ", ".join(python.version for python in pythons)
    made = ", ".join(sorted(path.name for path in DIST.glob("ullage*")))
    say(f"all is well with Python {tried}; in {DIST}: {made}")


if __name__ == "__main__":
    main()
