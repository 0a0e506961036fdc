"""The QLoRA recipes of `nf4.py`, and their checkpoints of zeros.

A checkpoint has holes for its zeros and takes no room on the disk. One that is `quantized` has the tensors that
bitsandbytes stores next to each NF4 weight, as the checkpoints "...-bnb-4bit" of the Hugging Face Hub do.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BLOCK, NESTED_BLOCK = 64, 256
_BYTES: Final = {"BF16": 2, "F32": 4, "U8": 1}

# The shapes of well-known models, with fewer layers.
SMOLLM_135M = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 4, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
SMOLLM_360M = {
    "model_type": "llama", "hidden_size": 960, "num_hidden_layers": 4, "num_attention_heads": 15,
    "num_key_value_heads": 5, "intermediate_size": 2560, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
TINYLLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_500M = {
    "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 4, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_1B = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A QLoRA training."""

    model: Mapping[str, Any]
    batch: int
    length: int
    attention: str
    optimizer: str
    quantized: bool = False
    """The checkpoint has NF4 weights; else they are quantized while they are loaded."""
    nested: bool = False
    """Double quantization."""
    checkpointing: bool = False
    """With what peft does before: `prepare_model_for_kbit_training`, weights in 32 bits, and autocast."""
    targets: Sequence[str] | str = "all-linear"


RECIPES: Final = {
    "smollm2_135m": Recipe(
        model=SMOLLM_135M, batch=4, length=512, attention="sdpa", optimizer="paged_adamw_8bit", checkpointing=True
    ),
    "smollm2_360m_eager": Recipe(
        model=SMOLLM_360M, batch=2, length=256, attention="eager", optimizer="adamw", targets=("q_proj", "v_proj")
    ),
    "tinyllama": Recipe(
        model=TINYLLAMA, batch=2, length=512, attention="sdpa", optimizer="paged_adamw_32bit", nested=True,
        checkpointing=True,
    ),
    "qwen2.5_0.5b": Recipe(model=QWEN_500M, batch=2, length=512, attention="sdpa", optimizer="adamw", nested=True),
    "llama3.2_1b_quantized": Recipe(
        model=LLAMA_1B, batch=1, length=1024, attention="sdpa", optimizer="paged_adamw_8bit", nested=True,
        quantized=True, checkpointing=True,
    ),
    "tinyllama_quantized_eager": Recipe(
        model=TINYLLAMA, batch=2, length=256, attention="eager", optimizer="adamw", quantized=True
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint; zeros unless it has content."""

    kind: str
    shape: tuple[int, ...]
    content: bytes = b""

    @property
    def size(self) -> int:
        """Return the bytes."""
        return math.prod(self.shape) * _BYTES[self.kind]


def make_checkpoint(recipe: Recipe, folder: Path) -> dict[str, int]:
    """Write the configuration and the weights; return the bytes of each tensor."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**recipe.model, max_position_embeddings=2048)
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.dtype = torch.bfloat16
    if recipe.quantized:
        config.quantization_config = quantization(recipe).to_dict()
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    tensors: dict[str, Stored] = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if recipe.quantized and name in linear - {"lm_head.weight"}:
            tensors |= _quantized(name, tuple(weight.shape), nested=recipe.nested)
        else:
            tensors[name] = Stored("BF16", tuple(weight.shape))
    _write(tensors, folder / "model.safetensors")
    return {name: tensor.size for name, tensor in tensors.items()}


def quantization(recipe: Recipe) -> Any:
    """Return the configuration of the quantization."""
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=recipe.nested,
    )


def _quantized(name: str, shape: tuple[int, ...], *, nested: bool) -> dict[str, Stored]:
    """Return what bitsandbytes stores for one NF4 weight."""
    blocks = -(-math.prod(shape) // BLOCK)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": shape}
    found = {
        name: Stored("U8", (math.prod(shape) // 2, 1)),
        f"{name}.absmax": Stored("U8" if nested else "F32", (blocks,)),
        f"{name}.quant_map": Stored("F32", (16,)),
    }
    if nested:
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": 0.0}
        found[f"{name}.nested_absmax"] = Stored("F32", (-(-blocks // NESTED_BLOCK),))
        found[f"{name}.nested_quant_map"] = Stored("F32", (256,))
    text = json.dumps(state).encode()
    return found | {f"{name}.quant_state.bitsandbytes__nf4": Stored("U8", (len(text),), text)}


def _write(tensors: Mapping[str, Stored], path: Path) -> None:
    """Write a safetensors file whose zeros are holes."""
    at, header = 0, {}
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [at, at + tensor.size]}
        at += tensor.size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + at)
        for name, tensor in tensors.items():
            if tensor.content:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(tensor.content)
