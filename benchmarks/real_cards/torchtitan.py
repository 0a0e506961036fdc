"""torchtitan's table of Llama 3.1 8B on 8 and on 128 H100s with FSDP: the most that rank 0 reserved, in GiB.

Its own script runs with its own configuration as rank 0, alone in its process, on made-up tokens
(`drivers/titan_train.py`), at the commit that the table names, for a few steps: what it logs does not change after the
second. A case names the `table` and the `row` in which the figure stands, the `world_size`, and the `options` that the
row stands for. torch was a nightly build of December 2024, between 2.6 and 2.7.

How the script was started is not told. Of the two ways that lie beside it, `multinode_trainer.slurm` leaves the
allocator's settings alone, as is done here; `run_llama_train.sh` sets expandable segments, with which both rows that
are not compiled reserve 2 to 3 GiB less than was published.
"""

import re
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_GIB: Final = 2**30
_SAID: Final = re.compile(r"^@(\d+) (\d+)$", re.MULTILINE)
_STEPS: Final = 4


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the peak that it logs last with the table's."""
    given = case.parameters
    published = published_in(bench.published(case).read_text(), given["table"], given["row"])
    source = bench.files(case.origins[1])
    ended = bench.run(
        case,
        HERE / "drivers" / "titan_train.py",
        [str(given["world_size"]), str(source), "train_configs/llama3_8b.toml", *_options_of(given["options"])],
        python_path=[source],
        variables={"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "inductor")},
    )
    said = _SAID.findall(ended.out)
    if not said or int(said[-1][0]) != _STEPS:
        ended.checked()
        raise RunError("the script ended without logging its memory")
    peak = Figure(published=round(published * _GIB), emulated=int(said[-1][1]), resolution=_GIB // 10)
    return Result.judged(case=case.name, figures={"reserved": peak})


def _options_of(given: list[str]) -> list[str]:
    return ["--training.steps", str(_STEPS), "--metrics.log_freq", str(_STEPS), *given]


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
