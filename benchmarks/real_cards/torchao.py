"""Optimizers in few bits, and ones that live on the host, published by torchao: vision transformers of timm.

Its own benchmark script runs on made-up images (`drivers/ao_low_bit.py`), for a few steps of its hours. A case names
the `heading` and the `row` of its table, the `arguments` and the `pixels` of an image. Figures are in GB with two
digits.
"""

import re
from collections.abc import Sequence
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result, Verdict

_GB: Final = 10**9
_BATCHES: Final = 3
_SAID: Final = re.compile(r"Max memory used: ([\d.]+) GB")
_FITS: Final = ("fits", "out of memory")


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the peak that it prints, or that it ran out, with the table's."""
    given = case.parameters
    published = published_in(bench.published(case).read_text(), given["heading"], given["row"], given["column"])
    source = bench.files(case.origins[0])
    script = source / "benchmarks" / "benchmark_low_bit_adam.py"
    ended = bench.run(
        case,
        HERE / "drivers" / "ao_low_bit.py",
        [str(_BATCHES), str(given["pixels"]), str(script), "--n_epochs", "1", "--n_workers", "0", *given["arguments"]],
        python_path=[source],
        variables={"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "inductor")},
    )
    said = _SAID.search(ended.out)
    ran_out = "OutOfMemoryError" in ended.error
    if not said and not ran_out:
        ended.checked()
        raise RunError("the script ended without printing its peak")
    verdict = Verdict(published=_FITS[published is None], emulated=_FITS[ran_out])
    if published is None or not said:
        return Result.judged(case=case.name, verdict=verdict)
    peak = Figure(published=published, emulated=round(float(said[1]) * _GB), resolution=_GB // 100)
    return Result.judged(case=case.name, figures={"allocated": peak}, verdict=verdict)


def published_in(text: str, heading: str, row: Sequence[str], column: int) -> int | None:
    """Return what a table tells of a row that begins so, in bytes; None: that it ran out of memory.

    Raises:
        RunError: there is no such table or row.
    """
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(heading):
            break
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if cells[: len(row)] == list(row):
            size = cells[column].removesuffix("GB")
            return None if size == "OOM" else round(float(size) * _GB)
    raise RunError(f"the table under {heading} has no row {' | '.join(row)}")
