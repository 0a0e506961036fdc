import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=1000, n_positions=128, n_embd=64, n_layer=4, n_head=4, attn_implementation="eager")
model = GPT2LMHeadModel(config).to("cuda")
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    batch = {"input_ids": torch.randint(0, 1000, (4, 128), device="cuda")}
    loss = model(**batch, labels=batch["input_ids"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
