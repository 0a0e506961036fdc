"""One run of `nf4.py`: QLoRA from the loading of the weights to the second step."""

import bisect
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Final

from ...instruments import peaks, reset_peaks
from .recipes import RECIPES, Recipe, quantization

STEPS: Final = 2
THREADS: Final = 4
"""What transformers starts on a machine with four cores or more."""


def train(recipe: Recipe, folder: Path, how: str, sizes: Mapping[str, int], order: str) -> dict[str, Any]:
    """Load the checkpoint and train; return the peaks of the loading and of each step.

    Args:
        recipe: what is trained.
        folder: the checkpoint.
        how: "default", "one thread" or "threads".
        sizes: of the checkpoint's tensors, in bytes.
        order: "any", or in which order threads load: "kept" or "queued" (benchmarks/real_cards/drivers/pace.py).
    """
    import torch

    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1" if how == "one thread" else "0"
    torch.manual_seed(0)
    loaders = _watch_loading(force=how == "threads", sizes=sizes, order=order)
    reset_peaks()
    model = _loaded(recipe, folder)
    moments = {"loaded": peaks() | {"held_bytes": torch.cuda.memory_allocated()}}
    model = _with_lora(model, recipe)
    optimizer = _optimizer(model, recipe.optimizer)
    ids = torch.randint(0, recipe.model["vocab_size"], (recipe.batch, recipe.length), device="cuda")
    for number in range(STEPS):
        reset_peaks()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=recipe.checkpointing):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        moments[f"step {number + 1}"] = peaks()
    return {"moments": moments, "loading_threads": len(loaders)}


def _loaded(recipe: Recipe, folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    given = {} if recipe.quantized else {"quantization_config": quantization(recipe)}
    return AutoModelForCausalLM.from_pretrained(
        folder, device_map={"": 0}, dtype=torch.bfloat16, attn_implementation=recipe.attention, **given
    )


def _with_lora(model: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    model.config.use_cache = False
    if recipe.checkpointing:
        model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    targets = recipe.targets if isinstance(recipe.targets, str) else list(recipe.targets)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"))
    model.train()
    return model


def _optimizer(model: Any, name: str) -> Any:
    import bitsandbytes as bnb
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=1e-4)
    kinds = {"paged_adamw_8bit": bnb.optim.PagedAdamW8bit, "paged_adamw_32bit": bnb.optim.PagedAdamW32bit}
    return kinds[name](trained, lr=1e-4)


def _watch_loading(*, force: bool, sizes: Mapping[str, int], order: str) -> set[int]:
    """Have transformers load in threads where `force` says so, in an order; return the set of the threads that load.

    transformers 5.17 loads weights that it quantizes itself in one thread; 5.0 did it in a pool of threads.
    """
    from transformers import core_model_loading as loading

    loaders: set[int] = set()
    main = threading.get_ident()
    copy, spawn = loading._materialize_copy, loading.spawn_materialize
    forced = ThreadPoolExecutor(THREADS) if force else None
    loading.GLOBAL_WORKERS = THREADS
    paced = None if order == "any" else _Paced(sizes, order)

    def spawned(pool: ThreadPoolExecutor | None, *arguments: Any, **named: Any) -> Any:
        pool = forced or pool
        if pool is None or paced is None:
            return spawn(pool, *arguments, **named)
        return pool.submit(paced.load_of(spawn(None, *arguments, **named)))

    def copied(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() != main:
            loaders.add(threading.get_ident())
        return copy(*arguments, **named)

    loading.spawn_materialize, loading._materialize_copy = spawned, copied
    if paced is not None:
        paced.hook(loading)
    return loaders


class _Paced:
    """Keeps one order of loads and conversions, however fast this machine is."""

    def __init__(self, sizes: Mapping[str, int], order: str) -> None:
        from transformers import core_model_loading as loading

        from benchmarks.real_cards.drivers import pace

        names = sorted(sizes, key=loading.dot_natural_key)
        self._order = pace.Order([sizes[name] for name in names], THREADS, queued=order == "queued")
        self._spawned = 0
        # The tensors of one NF4 weight are converted together, when the last one is there.
        weights = [name.partition(".weight.")[0].removesuffix(".weight") for name in names]
        ends = list(accumulate(len(list(tensors)) for _, tensors in groupby(weights)))
        self._order.loaded_before = [self._order.loaded_before[end - 1] for end in ends]
        self._order.taken_before = [bisect.bisect_right(ends, count) for count in self._order.taken_before]

    def load_of(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """Return a load that waits for its turn."""
        number = self._spawned
        self._spawned += 1
        return lambda: self._order.load(number, job)

    def hook(self, loading: Any) -> None:
        """Have every conversion wait for its turn."""
        for kind in (loading.WeightRenaming, loading.WeightConverter):
            kind.convert = self._converting(kind.convert)

    def _converting(self, convert: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: self._order.take(convert, *arguments, **named)


def main() -> None:
    """Train in this process, where a fork is not possible: `families.nf4.model RECIPE FOLDER HOW ORDER SIZES`."""
    name, folder, how, order, sizes = sys.argv[1:]
    print("@" + json.dumps(train(RECIPES[name], Path(folder), how, json.loads(sizes), order)))


if __name__ == "__main__":
    main()
