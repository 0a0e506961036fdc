"""A Llama that lies on all cards of a machine (device_map="auto"): its norms are trained. Arguments: model, tokens."""

import sys

import torch
from transformers import AutoModelForCausalLM

name, length = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map="auto")
model.requires_grad_(requires_grad=False)
for layer in model.model.layers:
    layer.input_layernorm.weight.requires_grad_(requires_grad=True)
optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)
for _ in range(3):
    ids = torch.zeros(1, length, dtype=torch.long, device=model.device)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
