"""Scripts whose memory is predicted and that then really run, close to the GPU's limit.

One question asks `ullage fit` for the largest batch, and runs that and the next. In the others `scripts/held.py` holds
as much of the GPU as brings a script a given share below the limit or above it; prediction and run have the same
arguments. What is compared is the prediction with the run that followed it, so an answer stands for itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..figure import Figure, recorded
from ..process import ROOT, die_with_parent, last_error, run_python
from ..question import Answer, GpuUnderTest, Question

EMULATES_ITSELF = True
SCRIPTS = "benchmarks/our_gpus/scripts"
GPT2 = "examples/train_gpt2.py"
RUN_SECONDS, PREDICTION_SECONDS = 25, 40
EMULATED_RUN_SECONDS, EMULATED_PREDICTION_SECONDS = 60, 80
"""A dry run's machine may be small and busy."""
UNIT = 2 << 20  # the driver gives memory to PyTorch's large segments in such pieces
FITS, DOES_NOT_FIT, UNKNOWN = "fits", "does not fit", "unknown"
KEPT = (
    "verdict", "reason", "peak_allocated_bytes", "peak_reserved_bytes", "interval_bytes", "context_interval_bytes",
    "oom_count", "ended", "cudnn", "placement",
)  # fmt: skip
"""What is kept of a prediction."""
KEPT_OF_OOM = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that runs while memory is held.

    `reserved_bytes` is its peak of reserved memory where there is plenty, and `needed_bytes` the least with which it
    runs, when PyTorch gives cached blocks back. Both were found with an emulated H100. They only choose how much is
    held: another GPU may need a little more or less, and is then a little nearer to the limit or farther from it.
    """

    about: str
    arguments: tuple[str, ...]
    reserved_bytes: int
    needed_bytes: int
    share: float
    """How far from the limit it is brought, as a share of the GPU's memory."""
    is_between: bool = False
    """Whether it also runs where cached blocks have to be given back, or where the size of the context decides."""


HELD = {
    "resnet50": Script(
        about="ResNet-50, 256 pictures",
        arguments=(f"{SCRIPTS}/train_resnet50.py", "--batch-size", "256"),
        reserved_bytes=24_995_954_688,
        needed_bytes=22_648_324_096,
        share=0.01,
    ),
    "gpt2_checkpointing": Script(
        about="GPT-2 with activation checkpointing",
        arguments=(GPT2, "--steps", "2", "--gradient-checkpointing", "--batch-size", "32"),
        reserved_bytes=29_118_955_520,
        needed_bytes=29_120_135_168,
        share=0.003,
    ),
    "kv_cache": Script(
        about="generation with a growing key-value cache",
        arguments=(f"{SCRIPTS}/generate_cached.py",),
        reserved_bytes=14_898_167_808,
        needed_bytes=12_814_778_368,
        share=0.003,
        is_between=True,
    ),
    "wide_adamw": Script(
        about="wide layers with AdamW",
        arguments=(f"{SCRIPTS}/train_wide.py",),
        reserved_bytes=10_976_493_568,
        needed_bytes=10_828_775_424,
        share=0.0005,
        is_between=True,
    ),
}
FITTED = "gpt2"
FITTED_ROW_BYTES, FITTED_OTHER_BYTES = 1_184_000_000, 850_000_000
"""About what GPT-2 takes for each row of a batch, and besides; they only choose the range that is searched."""
SEARCHED_AROUND = 4


def questions() -> list[Question]:
    """Return the largest batch, then each script below and above the limit."""
    fitted = Question(
        name=f"predicted/{FITTED}",
        about="GPT-2: the largest batch by ullage fit, and the next",
        seconds=20,
        alone=True,
        needs=("ullage",),
    )
    held = [
        Question(
            name=f"predicted/{name}",
            about=f"{script.about}, predicted and run {100 * script.share:g} % below and above the limit",
            seconds=18,
            alone=True,
            needs=("ullage",),
        )
        for name, script in HELD.items()
    ]
    return [fitted, *held]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Predict on the CPU, and run on the GPU."""
    (name,) = question.parts
    known = run_python([f"{SCRIPTS}/gpu_under_test.py"], environment=gpu.environment(), limit_seconds=_run_seconds(gpu))
    if known.returncode:
        raise RuntimeError(f"the GPU's name and memory are not known: {last_error(known.stderr)}")
    facts = json.loads(known.stdout)
    runs = _fitted(facts, gpu) if name == FITTED else _held(HELD[name], facts, gpu)
    return {**facts, "runs": runs}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare each run with its own prediction: the verdict, the peaks, and what the driver counts."""
    if not real["runs"] or len(real["runs"]) != len(emulated["runs"]):
        raise ValueError(f"{len(real['runs'])} runs on the real GPU, {len(emulated['runs'])} emulated")
    return [figure for each in real["runs"] for figure in _figures(each["name"], each["predicted"], each["run"])]


def _figures(name: str, predicted: Mapping[str, Any], run: Mapping[str, Any]) -> list[Figure]:
    outcome, verdict = run["outcome"], predicted["verdict"]
    is_known = verdict != UNKNOWN
    figures = [
        Figure(name=f"{name}, verdict", kind="verdict", real=outcome, emulated=verdict)
        if is_known
        else recorded(f"{name}, verdict: ullage says that it cannot be judged, so either is right", "verdict", outcome)
    ]
    has_same_end = outcome == FITS and not run["ooms"] and not predicted["oom_count"]
    # Blocks that were given back are as many as the free memory was short, and that depends on the CUDA context. cuDNN
    # may have taken another workspace meanwhile.
    is_exact = has_same_end and is_known and not run["retries"]
    for kind in ("allocated", "reserved"):
        figures.append(
            Figure(
                name=f"{name}, peak of {kind}_bytes",
                kind=kind,
                real=run[f"{kind}_bytes"],
                emulated=predicted[f"peak_{kind}_bytes"],
                recorded_only=not is_exact,
            )
        )
    low, high = predicted["interval_bytes"]
    used = {"name": f"{name}, used_bytes as the driver counts", "kind": "used", "real": run["used_bytes"]}
    figures.append(Figure(**used, interval=(low, high)) if is_exact else recorded(**used))
    return figures


# ---- what is run


def _held(script: Script, facts: Mapping[str, Any], gpu: GpuUnderTest) -> list[dict[str, Any]]:
    """Run a script below the limit, above it and perhaps between, while the predictions are made."""
    commands = {
        name: [f"{SCRIPTS}/held.py", str(mib), *script.arguments] for name, mib in _held_mib(script, facts).items()
    }
    with tempfile.TemporaryFile() as errors:
        started = [
            _start(["predict", *_of_gpu(facts), path, "--", *arguments], errors)
            for path, *arguments in commands.values()
        ]
        try:
            runs = [_run(command, gpu) for command in commands.values()]
            predictions = [_finish(process, errors, gpu, codes=(0, 1, 4)) for process in started]
        finally:
            for process in started:
                process.kill()
    return [
        {"name": name, "arguments": command, "predicted": _kept(found, code), "run": run}
        for (name, command), run, (found, code) in zip(commands.items(), runs, predictions, strict=True)
    ]


def _kept(found: Mapping[str, Any], code: int) -> dict[str, Any]:
    oom = found["oom"] and {name: found["oom"][name] for name in KEPT_OF_OOM}
    return {name: found[name] for name in KEPT} | {"oom": oom, "exit_code": code, "seconds": found["seconds"]["total"]}


def _held_mib(script: Script, facts: Mapping[str, Any]) -> dict[str, int]:
    """Choose how much is held, in MiB, for each place near the limit.

    Below it, even the largest CUDA context that ullage deems possible leaves the share free; above it, the share is
    missing even with the smallest.
    """
    from ullage.gpu.emulator.profile import profile_of
    from ullage.gpu.gpus import find_gpu

    total = facts["total_memory_bytes"]
    profile = profile_of(find_gpu(facts["gpu"]))
    far = int(script.share * total)
    below = total - profile.context_high_bytes - script.reserved_bytes - far
    above = total - profile.context_low_bytes - script.needed_bytes + far
    if below < UNIT:
        raise RuntimeError(
            f"{facts['gpu']} is too small for this question: {script.about} needs more than {total} bytes"
        )
    text = f"{100 * script.share:g} %"
    places = {f"{text} below the limit": below // UNIT, f"{text} above the limit": -(-above // UNIT)}
    if script.is_between:
        places["between"] = (total - profile.context_bytes - script.needed_bytes - UNIT) // UNIT
    return {name: units * (UNIT >> 20) for name, units in places.items()}


def _fitted(facts: Mapping[str, Any], gpu: GpuUnderTest) -> list[dict[str, Any]]:
    """Find the largest batch with which GPT-2 fits, and run it and the next."""
    middle = round((facts["total_memory_bytes"] - FITTED_OTHER_BYTES) / FITTED_ROW_BYTES)
    if middle <= SEARCHED_AROUND:
        raise RuntimeError(f"{facts['gpu']} is too small for this question: GPT-2 would run with {middle} rows")
    span = f"{middle - SEARCHED_AROUND}..{middle + SEARCHED_AROUND}"
    rest = ["--no-changes", "--vary", f"--batch-size={span}", GPT2, "--", "--steps", "2"]
    with tempfile.TemporaryFile() as errors:
        process = _start(["fit", *_of_gpu(facts), *rest], errors)
        try:
            found, _ = _finish(process, errors, gpu, codes=(0,))
        finally:
            process.kill()
    if found["best"] is None or found["next"] is None:
        raise RuntimeError(f"ullage fit found no limit among {span} rows: best {found['best']}, next {found['next']}")
    probes = {probe["value"]: probe for probe in found["probes"]}
    runs = []
    for name, rows in (("the largest batch that fits", found["best"]), ("one row more", found["next"])):
        command = [GPT2, "--steps", "2", "--batch-size", str(rows)]
        predicted = {**probes[rows], "seconds_of_fit": found["seconds"]}
        runs.append({"name": name, "arguments": command, "predicted": predicted, "run": _run(command, gpu)})
    return runs


# ---- processes


def _of_gpu(facts: Mapping[str, Any]) -> list[str]:
    return ["--gpu", facts["gpu"], "--total-memory", f"{facts['total_memory_bytes']}B", "--json"]


def _start(arguments: Sequence[str], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start `ullage` on the CPU, without the GPU under test: it emulates one itself."""
    environment = {name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    return subprocess.Popen(
        [sys.executable, "-m", "ullage", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        preexec_fn=die_with_parent,
    )


def _run_seconds(gpu: GpuUnderTest) -> float:
    return EMULATED_RUN_SECONDS if gpu.emulated else RUN_SECONDS


def _finish(
    process: "subprocess.Popen[bytes]", errors: IO[bytes], gpu: GpuUnderTest, *, codes: Sequence[int]
) -> tuple[Any, int]:
    """Wait for a prediction; return its JSON and its exit code."""
    output, _ = process.communicate(timeout=EMULATED_PREDICTION_SECONDS if gpu.emulated else PREDICTION_SECONDS)
    if process.returncode not in codes:
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        raise RuntimeError(f"ullage ended with code {process.returncode}: {last_error(said)}")
    return json.loads(output), process.returncode


def _run(command: Sequence[str], gpu: GpuUnderTest) -> dict[str, Any]:
    """Run a script on the GPU under test, to its end or to its out-of-memory error."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "used.json"
        ended = run_python(
            [f"{SCRIPTS}/run_and_report.py", str(file), *command],
            environment=gpu.environment(),
            limit_seconds=_run_seconds(gpu),
        )
        if ended.returncode or not file.is_file():
            raise RuntimeError(f"{' '.join(command)} ended with code {ended.returncode}: {last_error(ended.stderr)}")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found | {"seconds": round(time.monotonic() - began, 2)}
