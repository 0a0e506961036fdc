"""Peaks of single operators, published by Liger-Kernel in its table of benchmarks for several cards.

Its own scripts run unmodified, at the commit that brought the rows (`drivers/liger.py`). The first origin is the table,
the second the scripts and the kernels that they measure. A case names the `script` and the numbers of the `lines` that
are compared. A figure in the table is a float32 of MiB, which the script itself prints here: both are rounded alike.
Which torch was used is not told; the version of Liger-Kernel and a date are.
"""

import csv
import json
from pathlib import Path
from typing import Any, Final

from benchmarks.real_cards.bench import Bench, Ended, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

MIB: Final = 2**20
_FIRST_LINE: Final = 2  # the first is the head
Key = tuple[str, str, str, float, str, str]


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the rows that were published."""
    published = _published(bench.published(case), case.parameters["lines"])
    source = bench.files(case.origins[1])
    ended = bench.run(
        case,
        HERE / "drivers" / "liger.py",
        [str(source / "benchmark" / "scripts" / case.parameters["script"])],
        python_path=[source / "src", source / "benchmark" / "scripts", source],
        variables={"TRITON_CACHE_DIR": str(bench.folder / "triton")},
    )
    emulated = _printed(ended)
    figures = {
        _text(key): Figure(published=_bytes(value), emulated=_bytes(emulated[key]))
        for key, value in published.items()
        if key in emulated
    }
    if not figures:
        ended.checked()
        raise RunError("the script printed none of the rows")
    missing = len(published) - len(figures)
    left = ended.error.strip().splitlines()[-1][:200] if ended.returncode else "the script has other rows"
    reason = f"{missing} of {len(published)} rows were not reached: {left}" if missing else ""
    return Result.judged(case=case.name, reason=reason, figures=figures)


def _bytes(mib: float) -> int:
    return round(mib * MIB)


def _key(row: dict[str, Any], x: object) -> Key:
    config = json.loads(row["extra_benchmark_config_str"] or "{}")
    mode = row["kernel_operation_mode"] or ""
    return row["kernel_provider"], mode, row["x_name"], float(str(x)), row["kernel_name"], json.dumps(config)


def _text(key: Key) -> str:
    """Say which row it is; a kernel may be measured at several shapes."""
    provider, mode, name, x, kernel, config = key
    return f"{kernel} {config}: {provider} {mode}, {name}={x:g}"


def _published(path: Path, lines: list[int]) -> dict[Key, float]:
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    rows = [table[line - _FIRST_LINE] for line in lines]
    return {_key(row, row["x_value"]): float(row["y_value_50"]) for row in rows}


def _printed(ended: Ended) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for line in ended.out.splitlines():
        if not line.startswith("@{"):
            continue
        data = json.loads(line[1:])
        if data["metric_name"] == "memory":
            found |= {_key(data, x): y for x, y in zip(data["x_values"], data["y_values_50"], strict=True)}
    return found
