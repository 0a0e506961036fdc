"""torchtitan's tables of Llama 3.1 8B, 70B and 405B on 8 to 512 H100s: the most that a rank reserved, in GiB.

Its own script runs with its own configuration as one rank, alone in its process, on made-up tokens
(`drivers/titan_train.py`), at the commit that the table names, for a few steps: what it logs does not change after the
second. A case names the `table` and the `row` in which the figure stands, the `configuration`, the `world_size`, and
the `options` that the row stands for. torch was a nightly build of December 2024, between 2.6 and 2.7; torchao is of
the commit that the table names.

The table has the fullest rank of all, as it says of pipelines. Ranks do the same but for the stages of a pipeline, and
those of a sequence that is cut (context parallelism), which has the first attend to half of its part where the last
attends to half of the others': they reserve more or less by no rule. Those that a case names as `ranks` are run by
`ullage predict`, which has the stages before run as far as they tell their shapes; the fullest counts, and what lies
between them is the row's interval. How many micro-batches a step has is not told; here it is the script's own default,
one a stage.

What torch compiles is compiled anew in each run, as in the first on a machine: where nothing is in the cache, Inductor
times its kernels, with a buffer of 256 MiB, in the first step.

How the script was started is not told. Of the two ways that lie beside it, `multinode_trainer.slurm` leaves the
allocator's settings alone, as is done here; `run_llama_train.sh` sets expandable segments, with which both rows that
are not compiled reserve 2 to 3 GiB less than was published. Both tables of context parallelism, 2 and 6, are run with
them (`allocator`): so the first two rows of the one and the first of the other are equal, where without they are 0.4
and 3.3 GiB below what was published and 7.8 GiB above. That is inferred from these figures, not told.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_GIB: Final = 2**30
_SAID: Final = re.compile(r"^@(\d+) (\d+)$", re.MULTILINE)
_STEPS: Final = 4
_FLOAT8: Final = (
    "--training.compile",
    "--float8.enable_float8_linear",
    "--float8.enable_fsdp_float8_all_gather",
    "--float8.precompute_float8_dynamic_scale_for_fsdp",
)
"""What "torch.compile + Float8" stands for, by the script's own docs/float8.md."""
_DRIVER: Final = HERE / "drivers" / "titan_train.py"


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the peak that it logs last with the table's."""
    given = case.parameters
    published = published_in(bench.published(case).read_text(), given["table"], given["row"])
    if ranks := given.get("ranks"):
        found = {rank: _foretold(case, bench, rank) for rank in ranks}
    else:
        found = {0: _logged(case, bench)}
    fullest = max(found, key=lambda rank: found[rank])
    peak = Figure(published=round(published * _GIB), emulated=found[fullest], resolution=_GIB // 10)
    others = [f"{rank} {size / _GIB:.1f} GiB" for rank, size in found.items() if rank != fullest]
    said = f"rank {fullest} reserves most of the ranks that were run; the others: {', '.join(others)}" if others else ""
    between = {"reserved": (min(found.values()), max(found.values()))} if others else {}
    return Result.judged(case=case.name, figures={"reserved": peak}, intervals=between, reason=said)


def _logged(case: Case, bench: Bench) -> int:
    """Run rank 0, and return what it logs last."""
    with _around(case, bench) as around:
        ended = bench.run(case, _DRIVER, _arguments_of(case, bench), **around)
    said = _SAID.findall(ended.out)
    if not said or int(said[-1][0]) != _STEPS:
        ended.checked()
        raise RunError("the script ended without logging its memory")
    return int(said[-1][1])


def _foretold(case: Case, bench: Bench, rank: int) -> int:
    """Run a rank that is told something by others, and return the most that it reserves."""
    options = ["--world-size", str(case.parameters["world_size"]), "--rank", str(rank), "--steps", str(_STEPS)]
    given = ["--no-beside-eager", *options]
    with _around(case, bench) as around:
        found = bench.predicted(case, given, _DRIVER, _arguments_of(case, bench), **around)
    if found["ended"] != "steps":
        raise RunError(f"rank {rank} ended before its last step: {found['ended']}")
    return int(found["peak_reserved_bytes"])


def _arguments_of(case: Case, bench: Bench) -> list[str]:
    given = case.parameters
    steps = ["--training.steps", str(_STEPS), "--metrics.log_freq", str(_STEPS)]
    configuration = f"train_configs/{given['configuration']}.toml"
    source = str(bench.files(case.origins[1]))
    options = [*steps, *(_FLOAT8 if given.get("is_float8") else ()), *given.get("shared", ()), *given["options"]]
    return [str(given["world_size"]), source, configuration, *options]


@contextmanager
def _around(case: Case, bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield where the run imports from, and its variables, with an empty cache of what is compiled."""
    allocator = case.parameters.get("allocator")
    variables = {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}
    with TemporaryDirectory(prefix="inductor-", dir=bench.folder) as cache:
        yield {
            "python_path": [bench.files(origin) for origin in case.origins[1:]],
            "variables": {"TORCHINDUCTOR_CACHE_DIR": cache, **variables},
        }


def published_in(text: str, table: str, row: str) -> float:
    """Return what a numbered table tells of a row's memory, in GiB.

    Raises:
        RunError: there is no such table, or it has no such row.
    """
    for line in text.partition(f"**{table}**")[2].partition("\n**Table")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == row:
            return float(cells[-1])
    raise RunError(f"{table} has no row {row}")
