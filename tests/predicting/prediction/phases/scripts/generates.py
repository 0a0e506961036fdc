"""A model that generates inside an evaluation: `generates.py outer|inner` measures the one or the other."""

import sys

import torch
from measuring import measured
from transformers import GPT2Config, GPT2LMHeadModel

WHICH = sys.argv[1]
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000, pad_token_id=0)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.arange(64, device="cuda").repeat(8, 1)


def evaluate() -> None:
    model.eval()
    with torch.no_grad():
        model(rows.repeat(4, 1))
        if WHICH == "inner":
            with measured("generate"):
                model.generate(rows, max_new_tokens=4, do_sample=False)
        else:
            model.generate(rows, max_new_tokens=4, do_sample=False)
        torch.zeros(2**20, device="cuda")
    model.train()


for _ in range(2):
    model(rows, labels=rows).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if WHICH == "outer":
        with measured("evaluation"):
            evaluate()
    else:
        evaluate()
