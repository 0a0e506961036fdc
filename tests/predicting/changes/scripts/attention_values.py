"""A step of a small GPT-2 of transformers with eager attention; `told` is what has to stay the same."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_implementation="eager", attn_pdrop=0.0
)
model = GPT2LMHeadModel(config).to("cuda")
model.train()
tokens = torch.randint(0, 64, (2, 16), device="cuda")
loss = model(tokens, labels=tokens).loss
loss.backward()
told = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
