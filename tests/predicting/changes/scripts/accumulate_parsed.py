import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

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
[arguments] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
