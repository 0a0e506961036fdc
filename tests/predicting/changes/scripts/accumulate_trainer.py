import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

SIZE = 8
DEVICE = "cuda"


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(128) * (2 * index + 1) + index) % 1000
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
)
model = LlamaForCausalLM(config)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=SIZE,
    max_steps=3,
    optim="sgd",
    learning_rate=0.1,
    max_grad_norm=0.5,
    report_to=[],
    save_strategy="no",
    use_cpu=DEVICE == "cpu",
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
told = [parameter.detach().cpu() for parameter in model.parameters()]
