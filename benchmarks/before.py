"""How fast this commit is beside an earlier one, in one run: `make bench`, or `make bench-before COMMIT=...`.

    python benchmarks/before.py COMMIT [--rounds 9]

The earlier commit is built into a folder of its own and imported from there, with the same torch. Both take turns, and
what is compared is processor time, of which other work on the machine takes little; the least of each side counts.
Exits 1 where this commit takes more than a tenth more. It does not know what a step of training costs: predict.py does.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figure import Measured

ROOT = Path(__file__).resolve().parent.parent
BOUND = 1.1
SNAPSHOT = ROOT / "tests" / "snapshots" / "variable_length_oom.pickle.gz"
REPLAYS = f"""
from pathlib import Path
import ullage.recorded.allocator.replay as core
from ullage.recorded.rebuild.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot
rebuilt = program_of(load_snapshot(Path({str(SNAPSHOT)!r})).devices[0])
# The earlier commit may know the class by its former name.
device = getattr(core, "ReplayDevice", getattr(core, "Device", None))(total_bytes=rebuilt.room_bytes)
for _ in range(60):
    core.replay(rebuilt.program, rebuilt.settings, device)
"""
SEGMENTS = """
import ullage
ullage.emulate("80GiB")
import torch
for _ in range(6):
    kept = [torch.empty(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(2000)]
    del kept[::2]
    torch.cuda.empty_cache()
    del kept
    torch.cuda.empty_cache()
"""
TASKS = {
    "import ullage": ["-c", "import ullage"],
    "ullage predict, GPT-2 small": ["-m", "ullage", "predict", "examples/train_gpt2.py", "--gpu", "RTX 4090", "--json"],
    "ullage explain, a run that failed": ["-m", "ullage", "explain", str(SNAPSHOT), "--json"],
    "60 replays of it": ["-c", REPLAYS],
    "12,000 segments taken and given back on an emulated card": ["-c", SEGMENTS],
}


def build(commit: str, folder: Path) -> Path:
    """Install a commit into a folder, without what it requires."""
    source, place = folder / "source", folder / "installed"
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE, check=False)
    if archive.returncode:
        sys.exit(f"{commit} is no commit of this repository; expected a name that git knows, such as HEAD~1")
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    print(f"building {commit} (a minute)", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(place), str(source)], check=True)
    return place


def processor_seconds(arguments: list[str], *, installed: Path | None) -> float:
    """Run Python once; of it and all that it waited for, the processor's seconds."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if installed is not None:
        environment["PYTHONPATH"] = str(installed)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            errors.seek(0)
            sys.exit(f"{' '.join(arguments)[:200]} failed:\n{errors.read().decode()[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        installed = build(options.commit, Path(folder))
        for task, arguments in TASKS.items():
            times: dict[Path | None, list[float]] = {installed: [], None: []}
            for _ in range(options.rounds):
                for side, taken in times.items():
                    taken.append(processor_seconds(arguments, installed=side))
            ratio = min(times[None]) / min(times[installed])
            measured = Measured(f"times as long as {options.commit}: {task}", ratio, "x", BOUND)
            print(measured, flush=True)
            kept &= measured.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
