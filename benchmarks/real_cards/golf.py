"""Records of the parameter-golf competition: whole trainings with torch.compile and DistributedDataParallel on H100s.

The script of a record runs unmodified as its rank 0 of as many as there were, alone in its process, on made-up tokens
(`drivers/golf.py`), for its warm-up and a few steps instead of ten minutes: the log's own steps do not change after
these. A case names the `script`, the `world_size`, and the `variables` that the record was started with; where a log
tells another script than lies beside it, the log's is run (`script` is then left out). What the log tells of the
model's parameters has to be the same, and so has to be whether the model was validated before its first step: a second
graph is compiled and run then. It runs twice, and the second time counts: records are published of scripts that had run
before, and one case reserved more when its cache of compiled code was empty. Whether that was the reason is open.
Figures were printed in whole MiB, cut off.
"""

import re
from pathlib import Path
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

MIB: Final = 2**20
_PEAKS: Final = re.compile(r"peak memory allocated: (\d+) MiB reserved: (\d+) MiB")
_PARAMETERS: Final = re.compile(r"^model_params:(\d+)", re.MULTILINE)
_VALIDATION: Final = re.compile(r"^val_loader:.* tokens:(\d+)", re.MULTILINE)
_BEFORE_ALL: Final = re.compile(r"^step:0/\d+ val_loss", re.MULTILINE)
_STEPS: Final = 4
_END_OF_SCRIPT: Final = "\n" + "=" * 100 + "\n"


def run(case: Case, bench: Bench) -> Result:
    """Run the script, and compare the peaks that it prints with those of the log."""
    log = bench.published(case).read_text(errors="replace")
    given = case.parameters
    script = script_of(case, bench, log)
    steps = {"ITERATIONS": str(_STEPS), "VAL_LOSS_EVERY": str(_STEPS // 2 if _BEFORE_ALL.search(log) else 0)}
    arguments = ["0", str(given["world_size"]), "1024", _VALIDATION.findall(log)[-1], str(script)]
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "inductor"), **steps, **given.get("variables", {})}
    driver = HERE / "drivers" / "golf.py"
    bench.run(case, driver, arguments, variables=variables)  # so that everything is compiled
    ended = bench.run(case, driver, arguments, variables=variables)
    said = ended.out
    if not _PEAKS.search(said):
        ended.checked()
        raise RunError("the script ended without printing its peaks")
    parameters = _PARAMETERS.findall(log)[-1], _PARAMETERS.findall(said)[-1]
    if parameters[0] != parameters[1]:
        raise RunError(
            f"the model has {parameters[1]} parameters, the log tells {parameters[0]}: other variables were set"
        )
    pairs = zip(("allocated", "reserved"), _PEAKS.findall(log)[-1], _PEAKS.findall(said)[-1], strict=True)
    figures = {
        name: Figure(published=int(real) * MIB, emulated=int(emulated) * MIB, resolution=MIB)
        for name, real, emulated in pairs
    }
    return Result.judged(case=case.name, figures=figures)


def script_of(case: Case, bench: Bench, log: str) -> Path:
    """Return the script of the record, as it lies beside the log or as the log begins with it."""
    if "script" in case.parameters:
        return bench.files(case.origins[0]) / case.parameters["script"]
    path = bench.folder / "scripts" / f"{case.name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log.partition(_END_OF_SCRIPT)[0])
    return path
