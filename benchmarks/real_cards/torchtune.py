"""torchtune's table of techniques, one on top of the other: Llama 3.2 3B on one A100, the peak of active memory.

Its own recipe runs with its own configuration for three steps, on made-up packs, with weights of no value
(`drivers/tune_recipe.py`). A case names the `row`, the `recipe`, its `configuration` and the `settings` that the
technique and the ones above it stand for. Figures are in GiB with one digit.
"""

import re
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_GIB: Final = 2**30
_SAID: Final = re.compile(r"^@([\d.]+)$", re.MULTILINE)


def run(case: Case, bench: Bench) -> Result:
    """Run the recipe, and compare the peak that it logs last with the table's."""
    given = case.parameters
    if "why" in given:
        raise RunError(given["why"])
    published = published_in(bench.published(case).read_text(), given["row"])
    source = bench.files(case.origins[0])
    ended = bench.run(
        case,
        HERE / "drivers" / "tune_recipe.py",
        [str(source / given["recipe"]), "--config", str(source / given["configuration"]), *given["settings"]],
        python_path=[source],
        variables={"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "inductor")},
    )
    said = _SAID.findall(ended.out)
    if not said:
        ended.checked()
        raise RunError("the recipe ended without logging its memory")
    peak = Figure(published=round(published * _GIB), emulated=round(float(said[-1]) * _GIB), resolution=_GIB // 10)
    return Result.judged(case=case.name, figures={"active": peak})


def published_in(text: str, row: str) -> float:
    """Return what the table tells of a technique, in GiB.

    Raises:
        RunError: it has no such row.
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.sub(r"^\[(.*?)\].*", r"\1", cells[0]) == row:
            return float(cells[1])
    raise RunError(f"the table has no row {row}")
