"""A LoRA fine-tune by PEFT of a GPT-2 with made-up weights; a function of its own computes the loss."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    tokens = batch[0].to("cuda")
    return model(input_ids=tokens, labels=tokens).loss


model = get_peft_model(GPT2LMHeadModel(GPT2Config()), LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
model.to("cuda").train()
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
loader = DataLoader(TensorDataset(torch.randint(0, 50257, (256, 512))), batch_size=16)
for batch in loader:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
