"""Read a column of streamed rows."""

import torch
from datasets import load_dataset

rows = load_dataset("someone/pairs", split="train", streaming=True).map(lambda row: {"both": row["sentence1"]})
assert len(next(iter(rows))["both"].split()) == 20
torch.ones(1, device="cuda")
