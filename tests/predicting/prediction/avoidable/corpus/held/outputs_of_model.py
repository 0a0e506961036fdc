"""A model returns its loss and its scores together, as those of transformers do, and both stay until the next."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20000, 64)
        self.head = nn.Linear(64, 20000)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embed(tokens))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        with torch.no_grad():
            likely = logits.softmax(-1)
            entropy = -(likely * likely.log()).sum(-1).mean()
        return {"loss": loss, "logits": logits, "entropy": entropy}


model = Tagger().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    tokens = torch.randint(0, 20000, (4, 128)).cuda()
    outputs = model(tokens, tokens)
    outputs["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    # mend: del outputs
