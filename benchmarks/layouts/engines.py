"""One search over layouts on every engine: the same answer, and how much sooner with two workers: `make layouts`.

    python -m benchmarks.layouts.engines FOLDER [--cards 64] [--sizes 7b 70b] [--most tp=8] [--on local:2 ray ...]

First a small search, of 8 cards and a tiny model, is made by one worker and by two, for their times: nothing of it is
kept. Then the large one is made by each engine. Its results are kept in FOLDER, a file for each engine, so that what
was cut off goes on. `ray` is a cluster of two nodes, which is started here (`ray start`, twice). Exits 1 where answers
differ, or where two workers are less than 1.7 times as fast as one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token that lies here is asked for by the head, and shown by no other
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    start = [*ray, "start", "--num-cpus", "1"]
    head = [*start, "--head", "--port", PORT, "--include-dashboard", "false"]
    subprocess.run(head, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([*start, "--address", f"127.0.0.1:{PORT}"], check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run([*ray, "stop", "--grace-period", "5"], check=False, stdout=subprocess.DEVNULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The layouts that are searched."""

    cards: int
    sizes: Sequence[str]
    checkpoint: Sequence[str]
    zero: Sequence[str] = ("3",)
    most: Sequence[str] = ()
    vary: str = ""
    micro_batches: int = 8

    def by(self, on: str, store: str) -> tuple[dict[str, Any], float]:
        """Return the answer of `ullage fit --layout` by an engine, and the seconds that it took."""
        engine, _, workers = on.partition(":")
        engine = f"ray:127.0.0.1:{PORT}" if engine == "ray" else engine
        words = ["--gpu", "H100", "--cards", str(self.cards), "--layout", "*".join(AXES), "--steps", "2", "--json"]
        words += [word for axis in AXES for word in ("--layout-option", f"{axis}=--{axis}")]
        words += [word for bound in self.most for word in ("--most", bound)]
        chosen = {"size": self.sizes, "checkpoint": self.checkpoint, "zero": self.zero}
        words += [word for name, values in chosen.items() for word in ("--choose", f"--{name}={','.join(values)}")]
        words += ["--vary", self.vary] if self.vary else []
        words += ["--accumulate", str(self.micro_batches), "--item-tokens", "4096", "--on", engine]
        words += ["--workers", workers or "2", "--store", store]
        words += [str(SCRIPT), "--micro-batches", str(self.micro_batches)]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "ullage", "fit", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode not in (0, 1):
            sys.exit(f"{on} ended with {done.returncode}")
        return json.loads(done.stdout), time.perf_counter() - began


SMALL: Final = Search(cards=8, sizes=["tiny"], checkpoint=["none"])


def speed_up() -> float:
    """Return how many times as fast two workers are as one."""
    seconds = {on: SMALL.by(on, "none")[1] for on in ("local:1", "local:2")}
    ratio = seconds["local:1"] / seconds["local:2"]
    print(f"2 workers are {ratio:.2f} times as fast as 1 ({seconds['local:1']:.0f} and {seconds['local:2']:.0f} s)")
    return ratio


def essence(answer: dict[str, Any]) -> str:
    """Return what has to be the same on every engine."""
    return json.dumps([{**row, "error": row["error"].partition("\n")[0]} for row in answer["layouts"]], sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search on each engine, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cards", type=int, default=64)
    parser.add_argument("--sizes", nargs="+", default=["7b", "70b"])
    parser.add_argument("--most", nargs="*", default=["tp=16", "pp=2", "cp=2"])
    parser.add_argument("--vary", default="", help="as of ullage fit: --vary=--micro-batch=1..4")
    parser.add_argument("--on", nargs="+", default=["local:2", "ray", "submitit-local:2"])
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    ratio = speed_up()
    large = Search(
        cards=options.cards,
        sizes=options.sizes,
        checkpoint=["none", "mlp", "full"],
        zero=["2", "3"],
        most=options.most,
        vary=options.vary,
        micro_batches=2,  # no pipeline is deeper
    )
    answers = {}
    for on in options.on:
        with two_nodes() if on == "ray" else nullcontext():
            answer, took = large.by(on, str(options.folder / f"{on.replace(':', '-')}.sqlite"))
        counts = f"{len(answer['layouts'])} layouts, {answer['runs']} runs, {answer['kept_from_before']} from before"
        print(f"{on}: {counts}, {took:.0f} s ({answer['engine']})", flush=True)
        answers[on] = answer
    same = len({essence(answer) for answer in answers.values()}) == 1
    print("the same answer" if same else "the answers differ")
    return 0 if same and ratio >= LEAST_SPEED_UP else 1


if __name__ == "__main__":
    sys.exit(main())
