"""A small Llama of transformers whose attention is written out, in a loop of one's own."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=8,
    num_attention_heads=8,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(100):
    tokens = torch.randint(0, 32000, (4, 1024)).cuda()
    outputs = model(input_ids=tokens, labels=tokens)
    loss = outputs.loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
