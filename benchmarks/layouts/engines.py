"""One search over layouts on every engine: the same answer, and how much sooner with two workers: `make layouts`.

    python -m benchmarks.layouts.engines FOLDER [--cards 64] [--sizes 7b 70b] [--most tp=8] [--on local:1 ray ...]

Results are kept in FOLDER, a file for each engine, so that what was cut off goes on; times count only what was run in
one go. `ray` is a cluster of two nodes, which is started here (`ray start`, twice). Exits 1 where answers differ, or
where two workers are less than 1.7 times as fast as one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "benchmarks" / "layouts" / "llama.py"
AXES: Final = ("dp", "tp", "pp", "cp")
LEAST_SPEED_UP: Final = 1.7
PORT: Final = "6479"


@contextmanager
def two_nodes() -> Iterator[None]:
    """Start a Ray cluster of two nodes with a core each on this machine, and stop it."""
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    start = [*ray, "start", "--num-cpus", "1", "--include-dashboard", "false"]
    subprocess.run([*start, "--head", "--port", PORT], check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([*start, "--address", f"127.0.0.1:{PORT}"], check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run([*ray, "stop", "--grace-period", "5"], check=False, stdout=subprocess.DEVNULL)


def search(on: str, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Return the answer of `ullage fit --layout` by an engine, and the seconds that it took."""
    engine, _, workers = on.partition(":")
    engine = f"ray:127.0.0.1:{PORT}" if engine == "ray" else engine
    words = ["--gpu", "H100", "--cards", str(options.cards), "--layout", "*".join(AXES), "--steps", "2", "--json"]
    words += [word for axis in AXES for word in ("--layout-option", f"{axis}=--{axis}")]
    words += [word for bound in options.most for word in ("--most", bound)]
    words += ["--choose", f"--size={','.join(options.sizes)}", "--choose", "--checkpoint=none,full"]
    words += ["--vary", options.vary, "--accumulate", "8", "--item-tokens", "4096", "--on", engine]
    words += ["--workers", workers or "2", "--store", str(options.folder / f"{on.replace(':', '-')}.sqlite")]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ullage", "fit", *words, str(SCRIPT)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{on} ended with {done.returncode}")
    return json.loads(done.stdout), time.perf_counter() - began


def essence(answer: dict[str, Any]) -> str:
    """Return what has to be the same on every engine."""
    return json.dumps([{**row, "error": row["error"].partition("\n")[0]} for row in answer["layouts"]], sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search on each engine, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cards", type=int, default=64)
    parser.add_argument("--sizes", nargs="+", default=["7b", "70b"])
    parser.add_argument("--most", nargs="*", default=["tp=8", "cp=8"])
    parser.add_argument("--vary", default="--micro-batch=1..4")
    parser.add_argument("--on", nargs="+", default=["local:1", "local:2", "ray", "submitit-local:2"])
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    answers, seconds = {}, {}
    for on in options.on:
        if on == "ray":
            with two_nodes():
                answers[on], took = search(on, options)
        else:
            answers[on], took = search(on, options)
        answer = answers[on]
        counts = f"{len(answer['layouts'])} layouts, {answer['runs']} runs, {answer['kept_from_before']} from before"
        print(f"{on}: {counts}, {took:.0f} s ({answer['engine']})", flush=True)
        if not answer["kept_from_before"]:
            seconds[on] = took
    same = len({essence(answer) for answer in answers.values()}) == 1
    print("the same answer" if same else "the answers differ")
    speed_up = seconds["local:1"] / seconds["local:2"] if {"local:1", "local:2"} <= seconds.keys() else None
    if speed_up is not None:
        print(f"2 workers are {speed_up:.2f} times as fast as 1")
    return 0 if same and (speed_up is None or speed_up >= LEAST_SPEED_UP) else 1


if __name__ == "__main__":
    sys.exit(main())
