"""Train a small language model on texts of different lengths, padded to the longest text of each batch."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

import ullage

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--max-tokens", type=int, help="Build batches of at most this many tokens, padding included.")
options = parser.parse_args()

random.seed(0)
torch.manual_seed(0)
lengths = [min(256, 8 + int(random.expovariate(1 / 48))) for _ in range(200_000)]
lengths[70_000] = lengths[150_000] = 2048  # two of 200,000 texts are eight times as long as any other


class Texts(torch.utils.data.Dataset):
    """Texts of the given lengths."""

    def __len__(self):
        return len(lengths)

    def __getitem__(self, index):
        return torch.full((lengths[index],), index % 1000)


def collate(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


if options.max_tokens:
    sampler = ullage.TokenBudgetBatchSampler(lengths, max_tokens=options.max_tokens)
    loader = DataLoader(Texts(), batch_sampler=sampler, collate_fn=collate)
else:
    loader = DataLoader(Texts(), batch_size=options.batch_size, shuffle=True, collate_fn=collate)

model = nn.Sequential(
    nn.Embedding(8192, 256),
    nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True),
    nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True),
    nn.Linear(256, 8192),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())

for batch in loader:
    ids = batch.cuda()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
