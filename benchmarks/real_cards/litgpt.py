"""LoRA on one A10G, published by litgpt beside its configurations: its own fine-tuning script, eight optimizer steps.

The script and the configuration are litgpt's, of the commit that published the last of the rows; data and weights are
made up (`drivers/litgpt_lora.py`). How long the longest sequence of its data was is not told, only that it was cut at
512 tokens: it is taken for as long. Figures are in GB with two digits. A case names the `row` and the `configuration`.
"""

import re
from pathlib import Path
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_GB: Final = 10**9
_MACHINE, _PEAK = 5, 8  # columns of the table
_SAID: Final = re.compile(r"Memory used: ([\d.]+) GB")


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the peak that it prints with the table's."""
    published = _published(bench.published(case), case.parameters["row"])
    source = bench.files(case.origins[0])
    configuration = source / "config_hub" / "finetune" / case.parameters["configuration"]
    ended = bench.run(case, HERE / "drivers" / "litgpt_lora.py", [str(configuration), "8"], python_path=[source])
    said = _SAID.search(ended.out)
    if not said:
        ended.checked()
        raise RunError("the script ended without printing its peak")
    peak = Figure(published=published, emulated=round(float(said[1]) * _GB), resolution=_GB // 100)
    return Result.judged(case=case.name, figures={"allocated": peak})


def _published(path: Path, row: str) -> int:
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == row and cells[_MACHINE] == "1xA10G":
            return round(float(cells[_PEAK].removesuffix("GB")) * _GB)
    raise RunError(f"the table has no row {row}")
