"""Run PEFT's comparison of methods on images with a model made up from its figures, for a few steps.

    peft_images.py FOLDER EXPERIMENT

FOLDER holds the comparison's scripts. Weights, images, tokens and the encoder that judges images are of the real shapes
and of no value. The text encoder counts, although it has left the card before what is published begins: what is made of
its results lies in its segments and keeps them. Images are made between the steps as the comparison does, in one step
each; the judging after the last training step is left out. The peak that the comparison keeps is printed.
"""

import math
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import torch
import undrawn  # noqa: F401  for what it does when imported
import uninstalled  # noqa: F401  for what it does when imported
from PIL import Image

_STEPS: Final = {"max_steps": 6, "eval_steps": 2, "num_inference_steps": 1}
_IMAGES: Final = 20
_PIXELS: Final = 1024
_TRANSFORMER: Final = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
_TEXT_ENCODER: Final = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
_WORDS: Final = 32  # of a prompt: the rest of its tokens are padding


class _Images:
    """As much of a data set of Hugging Face's as the comparison asks."""

    def __init__(self, count: int = _IMAGES) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _: str) -> list[Image.Image]:
        return [Image.new("RGB", (_PIXELS, _PIXELS)) for _ in range(self._count)]

    def select(self, indices: Sequence[int]) -> "_Images":
        return _Images(len(indices))


class _Batch(dict[str, Any]):
    def to(self, device: torch.device) -> "_Batch":
        return _Batch({name: each.to(device) for name, each in self.items()})


def _pixels_of(images: Sequence[Image.Image], **_: Any) -> _Batch:
    return _Batch(pixel_values=torch.zeros(len(images), 3, 224, 224))


def _unwritten(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Put a model of the meta device into this machine's memory, without a page of it being touched."""
    return model.to(dtype).to_empty(device="cpu")


class _Tokenizer:
    """Gives every prompt the same tokens."""

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        return ""

    def __call__(self, _: str, *, max_length: int, **__: Any) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(1, max_length, dtype=torch.int64)
        return {"input_ids": tokens, "attention_mask": (torch.arange(max_length) < _WORDS).long()[None]}


def _text_encoder(dtype: torch.dtype) -> torch.nn.Module:
    """Return the text encoder, which leaves the card without its weights being copied: gigabytes of zeros, else."""
    transformers = import_module("transformers")
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(dtype=dtype, **_TEXT_ENCODER))
    model = _unwritten(model, dtype)
    model.tie_weights()  # one tensor again, where the two of the meta device became two
    move = model.to

    def moved(device: torch.device | str) -> torch.nn.Module:
        leaves = torch.device(device).type == "cpu"
        return model._apply(lambda tensor: torch.empty_like(tensor, device="cpu")) if leaves else move(device)

    model.to = moved
    return model


def _pipeline(_: str, torch_dtype: torch.dtype) -> Any:
    diffusers = import_module("diffusers")
    with torch.device("meta"):
        transformer = diffusers.Flux2Transformer2DModel(**_TRANSFORMER)
    return diffusers.Flux2KleinPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=diffusers.AutoencoderKLFlux2().to(torch_dtype),
        text_encoder=_text_encoder(torch_dtype),
        tokenizer=_Tokenizer(),
        transformer=_unwritten(transformer, torch_dtype),
    )


def _encoder(*_: Any) -> tuple[Any, torch.nn.Module]:
    transformers = import_module("transformers")
    return _pixels_of, transformers.Dinov2Model(transformers.Dinov2Config(image_size=518)).to("cuda").eval()


def _told(*, train_result: Any, **_: Any) -> None:
    if train_result.error_msg:
        raise RuntimeError(train_result.error_msg)
    print(f"@{train_result.accelerator_memory_max_train} {train_result.num_total_params}", flush=True)


class _Torch:
    """PyTorch for the pipeline, but that the largest coordinate of a square is known without its values being read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def max(self, places: torch.Tensor) -> torch.Tensor:
        torch.max(places)
        return torch.tensor(math.isqrt(len(places)) - 1)


def _say(*said: object, **_: Any) -> None:
    print(*said, file=sys.stderr, flush=True)
    if sys.exc_info()[0]:  # the comparison keeps only the last line of an error
        traceback.print_exc()


def main() -> None:
    """Replace what reads files or the network, and run the experiment."""
    folder, experiment = sys.argv[1:]
    os.chdir(folder)
    sys.path.insert(0, folder)
    datasets = ModuleType("datasets")
    datasets.__spec__ = ModuleSpec("datasets", None)
    datasets.load_dataset = lambda *_, **__: _Images()
    datasets.__version__ = "0"
    sys.modules["datasets"] = datasets
    utils, run = import_module("utils"), import_module("run")
    import_module("diffusers.pipelines.flux2.pipeline_flux2_klein").torch = _Torch()
    utils.Flux2KleinPipeline = type("Pipeline", (), {"from_pretrained": staticmethod(_pipeline)})
    train_config, evaluate = run.get_train_config, run.evaluate
    run.get_train_config = lambda path: replace(train_config(path), **_STEPS)
    run.get_dino_encoder, run.log_results, run.print_verbose = _encoder, _told, _say
    run.evaluate = lambda *, num_repeats=1, **given: evaluate(**given) if num_repeats == 1 else 0.0
    run.get_peft_branch = lambda: "none"
    run.get_base_model_info = run.get_dataset_info = lambda _: None
    run.measure_drift = run.get_file_size = lambda *_, **__: 0
    run.generate_sample_images = lambda **_: None
    name = run.validate_experiment_path(experiment)
    run.main(path_experiment=experiment, experiment_name=name, clean=True, bucket_name=None)


if __name__ == "__main__":
    main()
