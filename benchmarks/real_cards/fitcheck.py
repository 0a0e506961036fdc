"""Fine-tuning of language models on one Tesla T4, measured to the byte: fitcheck-llm's own `scripts/measure.py`.

The script runs unmodified. A row of the source distribution gives its options and the shape of the model; where it
gives no shape, another row of the same model does. The weights are made of that shape (`drivers/zeros.py`), because no
figure depends on their values. The cases in `fitcheck.toml` name the `row`, the `model_type`, and as `none` what the
model's own configuration leaves empty. Where the row has no figures by phase, it was rounded to a MiB.

Quantised weights are loaded by transformers 5 in several threads, straight to the card, so that the same recipe does
not give the same bytes twice on a card: the order of the threads decides it. `orders` says for each run of a case
which they keep (`drivers/pace.py`), or "any": as this machine lets them. The first run is compared; between what all of
them say is the interval.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.real_cards.bench import Bench, Ended, RunError
from benchmarks.real_cards.case import HERE, Case, Figure, Result

MIB: Final = 2**20
_FIGURES: Final = {
    "loaded": "after_load_allocated_mib",
    "before the first step": "resident_before_step_mib",
    "forward": "peak_forward_mib",
    "backward": "peak_backward_mib",
    "optimizer": "peak_optimizer_mib",
    "allocated": "peak_allocated_mib",
    "reserved": "peak_reserved_mib",
}
# What the loaded model was called does not tell how long its sequences may be; longer than the longest row is enough.
_POSITIONS: Final = 1 << 15


def run(case: Case, bench: Bench) -> Result:
    """Run the script as the row says, and compare what it prints."""
    row = json.loads(bench.published(case).read_text())["runs"][case.parameters["row"]]
    shape = row.get("model_config") or shape_of(row["model_id"], bench.published(case).parent)
    ended = ended_of(case, bench, row["run"], shape)
    resolution = 1 if "peak_forward_mib" in row["measured"] else MIB
    figures, intervals = compared(row["measured"], [printed(one) for one in ended], resolution)
    return Result.judged(case=case.name, figures=figures, intervals=intervals, reason=reason_of(intervals, len(ended)))


def shape_of(model: str, folder: Path) -> Mapping[str, Any]:
    """Return the shape of a model from a row of any file that gives one.

    Raises:
        RunError: there is none.
    """
    for path in sorted(folder.glob("*.json")):
        for row in json.loads(path.read_text()).get("runs", []):
            if row["model_id"] == model and "model_config" in row:
                found: Mapping[str, Any] = row["model_config"]
                return found
    raise RunError("no file that was published beside it tells the shape of the model")


def ended_of(case: Case, bench: Bench, asked: Mapping[str, Any], shape: Mapping[str, Any]) -> list[Ended]:
    """Run the script on a model of a shape, as a row's `run` asks, once in each of the case's `orders`."""
    files = bench.files(case.origins[0])
    model = _model_of(shape, case.parameters["model_type"])
    model |= dict.fromkeys(case.parameters.get("none", ()))  # toml has no null
    script = str(files / "scripts" / "measure.py")
    arguments = [json.dumps(model), "model", script, "model", *_options_of(asked)]
    driver = HERE / "drivers" / "zeros.py"
    orders = case.parameters.get("orders", ["any"])
    return [bench.run(case, driver, [order, *arguments], python_path=[files]) for order in orders]


def printed(ended: Ended) -> dict[str, Any]:
    """Return what the script measured.

    Raises:
        RunError: it did not end well, or without its figures.
    """
    at = ended.checked().out.find("{\n")
    if at < 0:
        raise RunError("measure.py ended without printing its figures")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(ended.out[at:])[0]["measured"]
    return found


def compared(
    published: Mapping[str, float], runs: Sequence[Mapping[str, float]], resolution: int
) -> tuple[dict[str, Figure], dict[str, tuple[int, int]]]:
    """Return the published figures beside the first of several runs, and between what the runs lie that differ."""
    figures, intervals = {}, {}
    for name, key in _FIGURES.items():
        if key in published:
            emulated = [_bytes(found[key]) for found in runs]
            figures[name], between = first_of(_bytes(published[key]), emulated, resolution)
            if between:
                intervals[name] = between
    return figures, intervals


def first_of(published: int, emulated: Sequence[int], resolution: int) -> tuple[Figure, tuple[int, int] | None]:
    """Return a published figure beside the first one of several runs, and between what they lie where they differ."""
    low, high = min(emulated), max(emulated)
    figure = Figure(published=published, emulated=emulated[0], resolution=resolution)
    return figure, (low, high) if low != high else None


def reason_of(intervals: Mapping[str, tuple[int, int]], runs: int) -> str:
    """Say which of several runs a row shows, where they differ."""
    said = f"figures of the first of {runs} runs in which threads loaded the weights in different orders"
    return said if intervals else ""


def _bytes(mib: float) -> int:
    return round(mib * MIB)


def _model_of(shape: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_attention_heads"],
        "num_key_value_heads": shape["num_kv_heads"],
        "intermediate_size": shape["intermediate_size"],
        "vocab_size": shape["vocab_size"],
        "tie_word_embeddings": shape["tie_word_embeddings"],
        "max_position_embeddings": _POSITIONS,
    }


def _options_of(run: Mapping[str, Any]) -> list[str]:
    """Return the options of the script that gave a row."""
    given = {
        "--quant": run["quantization"],
        "--precision": run["precision"],
        "--lora-r": run["lora_rank"],
        "--lora-targets": ",".join(run["lora_targets"]),
        "--batch-size": run["batch_size"],
        "--seq-len": run["seq_len"],
        "--optimizer": run["optimizer"],
        "--gpu": run["gpu_key"],
    }
    options = [text for name, value in given.items() for text in (name, str(value))]
    options += ["--grad-checkpoint"] if run["grad_checkpoint"] else []
    options += ["--double-quant"] if run["double_quant"] else []
    options += ["--flash-attn"] if run["kernel"] == "flash" else []
    return [*options, "--attn-impl", run["attn_impl"], "--json", "--no-predict"]
