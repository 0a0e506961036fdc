"""Run a benchmark script of Liger-Kernel as it is, and print the rows that it would write into its table.

    liger.py SCRIPT

Time means nothing on a card that computes nothing: what is timed runs once. The memory of a row can depend on what ran
before it in the process, so the script runs as a whole.
"""

import dataclasses
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import triton.testing


def _once(timed: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, **__: Any) -> Any:
    timed()
    return [0.0] * len(quantiles) if quantiles else 0.0


def _print(benchmark_data_list: Sequence[Any], **_: Any) -> None:
    for each in benchmark_data_list:
        print("@" + json.dumps(dataclasses.asdict(each)), flush=True)


script = sys.argv.pop(1)
sys.path.insert(0, str(Path(script).resolve().parent))
triton.testing.do_bench = _once
import utils  # noqa: E402  (the scripts' own)

utils.update_benchmark_data_csv = _print
sys.argv = [script, "--overwrite"]
runpy.run_path(script, run_name="__main__")
