"""A small language model on texts of many lengths, padded to the longest of each batch."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--texts", type=int, default=100_000)
parser.add_argument("--longest", type=int, default=512)
options = parser.parse_args()

random.seed(0)
torch.manual_seed(0)


class Texts(Dataset):
    """Most texts are short; a few are as long as they may be."""

    def __init__(self):
        self.lengths = [min(options.longest, 8 + int(random.expovariate(1 / 48))) for _ in range(options.texts)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.full((self.lengths[index],), index % 1000)


def collate(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


model = nn.Sequential(
    nn.Embedding(8192, 256),
    nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True),
    nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True),
    nn.Linear(256, 8192),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())

for batch in DataLoader(Texts(), batch_size=options.batch_size, shuffle=True, collate_fn=collate):
    ids = batch.cuda()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
