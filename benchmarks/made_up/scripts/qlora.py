"""QLoRA: a Llama is quantized by bitsandbytes while it is loaded, and PEFT puts LoRA beside it.

Arguments: the model, the tokens of a batch, 4 or 8 bits.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

name, length, bits = sys.argv[1], int(sys.argv[2]), sys.argv[3]
four = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
how = four if bits == "4" else BitsAndBytesConfig(load_in_8bit=True)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map={"": 0}, quantization_config=how)
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
model.train()
optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)
for _ in range(3):
    ids = torch.zeros(1, length, dtype=torch.long, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
