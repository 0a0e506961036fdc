"""Generate tokens with transformers and tell the peak, on an emulated card too: `python examples/generate.py T4`.

`generate` asks the card after each token whether all sequences have ended. An emulated card has no values: what it
answers is no, for ever, whatever `max_new_tokens` says. A criterion that counts tokens on the host ends it.
"""

import contextlib
import sys

import ullage

if len(sys.argv) > 1:
    ullage.emulate(sys.argv[1])

import torch
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria, StoppingCriteriaList


class EnoughTokens(Exception):
    """As many tokens are there as were wanted."""


class TokenCount(StoppingCriteria):
    """End generation by the length of the sequences, which needs no value of the card."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        if input_ids.shape[1] >= self.length:
            raise EnoughTokens
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=512, n_head=8, n_positions=512)).cuda().eval()
prompt = torch.ones(8, 16, dtype=torch.long, device="cuda")
steps = []
model.register_forward_hook(lambda *_: steps.append(1))
with contextlib.suppress(EnoughTokens):
    model.generate(
        prompt, max_new_tokens=100, pad_token_id=0, stopping_criteria=StoppingCriteriaList([TokenCount(116)])
    )
print(f"{len(steps)} tokens a sequence, {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB at the peak")
