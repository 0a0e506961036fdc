#!/usr/bin/env bash
# transformers 5.17 loads a checkpoint with a pool of threads, but not if it quantizes the weights while it loads them:
# then one thread loads, whatever HF_DEACTIVATE_ASYNC_LOAD says. A checkpoint that is 4-bit already is loaded by threads.
# So what PyTorch reserves for the same model can differ from run to run with the quantized checkpoint, and not with the
# plain one that `load_in_4bit=True` quantizes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
"$python" -m pip install --quiet --disable-pip-version-check transformers==5.17.0 accelerate==1.15.0 bitsandbytes==0.50.2
cd "$folder"
cat >tried.py <<'PYTHON'
import concurrent.futures
import importlib.metadata
import threading

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig
from transformers import core_model_loading as loading

for name in ("torch", "transformers", "bitsandbytes"):
    print(name, importlib.metadata.version(name))

pools = 0


class Counted(concurrent.futures.ThreadPoolExecutor):
    def __init__(self, *arguments, **named):
        global pools
        pools += 1
        super().__init__(*arguments, **named)


loading.ThreadPoolExecutor = Counted


def load(folder, **options):
    global pools
    pools = 0
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu", **options)
    return model, pools


config = LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, vocab_size=512
)
AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained("plain")
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
_, plain = load("plain")
quantized, while_loading = load("plain", quantization_config=four_bits)
quantized.save_pretrained("quantized")
_, already = load("quantized")
print("pools of threads: plain weights", plain, "| quantized while loading", while_loading, "| 4-bit checkpoint", already)
assert (plain, while_loading, already) == (1, 0, 1), "the behaviour has changed"
PYTHON
"$python" tried.py
