"""Functional tests of Megatron-LM: what its last rank of eight wrote for TensorBoard, kept beside them.

A test's own script and configuration run as that rank alone in its process (`drivers/megatron_lm.py`), for a few steps:
later ones of one run do not differ. A case names the `vocabulary` of the data, which NVIDIA keeps to itself. What Apex
does in NVIDIA's container is stood in for (`drivers/apex_stand_in.py`). Figures are in bytes, of the first and of a
later step: what is allocated when a step is logged, and the most that was. A test in fp16 skips steps until its loss
scale is low enough: 17 or so on a real card, two here, so that its `steps` are pairs of a published one and one here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_WORLD_SIZE: Final = 8
_LAST: Final = 5
_STEPS: Final = ((1, 1), (_LAST, _LAST))
_NAMES: Final = {"mem-allocated-bytes": "allocated", "mem-max-allocated-bytes": "peak"}


def run(case: Case, bench: Bench) -> Result:
    """Run the test, and compare what it logs with what is kept beside it."""
    steps = dict(case.parameters.get("steps", _STEPS))  # as published, and as run
    published = figures_of(json.loads(bench.published(case).read_text()), list(steps))
    source = bench.files(case.origins[0])
    configuration = (source / case.file).with_name("model_config.yaml")
    given = [source, configuration, _LAST, case.parameters["vocabulary"], _WORLD_SIZE]
    ended = bench.run(
        case,
        HERE / "drivers" / "megatron_lm.py",
        list(map(str, given)),
        python_path=[source],
        variables={"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "inductor")},
    )
    said = [json.loads(line[1:]) for line in ended.out.splitlines() if line.startswith("@")]
    emulated = {(_NAMES[each["name"]], each["step"]): each["value"] for each in said if each["name"] in _NAMES}
    if not {(name, steps[step]) for name, step in published} <= set(emulated):
        ended.checked()
        raise RunError("the test ended without logging its memory")
    figures = {
        f"{name}, step {step}": Figure(published=size, emulated=emulated[name, steps[step]])
        for (name, step), size in published.items()
    }
    return Result.judged(case=case.name, figures=figures)


def figures_of(kept: Mapping[str, Any], steps: Sequence[int]) -> dict[tuple[str, int], int]:
    """Return what a file of golden values tells of memory at some steps, by the figure and the step."""
    return {
        (short, step): int(kept[name]["values"][str(step)])
        for step in steps
        for name, short in _NAMES.items()
        if isinstance(kept.get(name, {}).get("values", {}).get(str(step)), int | float)
    }
