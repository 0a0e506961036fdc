"""GPT-2 small of transformers, three steps of AdamW."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    ids = torch.randint(0, 50257, (4, 512)).cuda()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
