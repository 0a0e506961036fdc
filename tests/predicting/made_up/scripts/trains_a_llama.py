"""Load a model by its name or folder, and take some steps; `save FOLDER` makes the checkpoint instead."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

name, *options = sys.argv[1:]
if "save" in options:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name), dtype=torch.bfloat16)
    model.save_pretrained(options[-1])
    sys.exit()
where = "cuda" if "device_map" in options else None
dtype = torch.float32 if "float32" in options else torch.bfloat16
model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=where).cuda()
if "words" in options:
    tokenizer = AutoTokenizer.from_pretrained(name)
    ids = tokenizer(["the the the the"] * 4, return_tensors="pt").input_ids.cuda()
    assert ids.shape == (4, 4), ids.shape
    assert int(ids.max()) < model.config.vocab_size
    assert tokenizer.decode(tokenizer("any text: ü").input_ids) == "any text: ü"
    assert model.config._name_or_path == name
ids = torch.zeros(4, 64, dtype=torch.long, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
