"""Train a Llama built on the device from its config: `llama.py 7b` or `llama.py 70b`."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
}


def main() -> None:
    config = LlamaConfig(vocab_size=32000, **SIZES[sys.argv[1]])
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while True:
        tokens = torch.randint(0, config.vocab_size, (1, 2048), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
