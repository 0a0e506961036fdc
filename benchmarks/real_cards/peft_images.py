"""PEFT's comparison of methods on images: FLUX.2 klein 4B on one L40S, the most that was reserved in training.

The comparison's own script runs an experiment with a model made up from its figures (`drivers/peft_images.py`), for six
of its 750 steps, with images made after every second one. A case names the `experiment`; how many parameters there are
has to be as published. The runs had cuDNN 9.7.1, which cannot be asked without a card: its workspaces are estimates.
"""

import json
import re
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

_SAID: Final = re.compile(r"^@(\d+) (\d+)$", re.MULTILINE)


def run(case: Case, bench: Bench) -> Result:
    """Run the experiment, and compare the peak that it keeps."""
    published = json.loads(bench.published(case).read_text())["train_info"]
    source = bench.files(case.origins[0])
    folder = source / "method_comparison" / "image-gen"
    experiment = f"experiments/{case.parameters['experiment']}"
    ended = bench.run(
        case, HERE / "drivers" / "peft_images.py", [str(folder), experiment], python_path=[source / "src"]
    )
    said = _SAID.search(ended.out)
    if not said:
        ended.checked()
        raise RunError("the experiment ended without keeping its memory")
    peak, parameters = map(int, said.groups())
    if parameters != published["num_total_params"]:
        raise RunError(f"the model has {parameters:,} parameters, published are {published['num_total_params']:,}")
    return Result.judged(
        case=case.name, figures={"reserved": Figure(published=published["accelerator_memory_max"], emulated=peak)}
    )
