"""Read columns that a generated data set does not have, in every way in which scripts do."""

import sys

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader

mrpc = load_dataset("nyu-mll/glue", "mrpc", split="train")
assert mrpc.column_names == ["sentence1", "sentence2", "label", "idx"]
assert mrpc[0]["labels"] == 0
assert mrpc.features["label"].num_classes == 2
if "labels" in sys.argv:
    torch.ones(1, device="cuda")
    sys.exit()

splits = load_dataset("someone/unknown")
rows = splits["train"]
assert rows.features["label"].num_classes == 2
assert len(rows[0]["premise"].split()) == 20
assert rows[:2]["score"] == [0.0, 1.0]
assert rows["labels"][:4] == [0, 1, 0, 1]
for row in rows:
    assert len(row["ner_tags"]) == 20
    assert row["tokens"] == ["the"] * 20
assert "premise" in splits["validation"].column_names


def encode(batch):
    return {"ids": [[1] * len(text.split()) for text in batch["question1"]], "labels": batch["gold_label"]}


pairs = load_dataset("someone/pairs")
encoded = pairs.map(encode, batched=True, remove_columns=pairs["train"].column_names)
assert encoded["train"].column_names == ["ids", "labels"]
parts = load_dataset("someone/pairs", split="train").train_test_split(test_size=0.25)
assert len(parts.map(encode, batched=True, num_proc=2)["train"]["ids"]) == 6

chosen = load_dataset("someone/rows", split="train").rename_column("label", "labels").remove_columns(["idx"])
chosen = chosen.shuffle(seed=1).select(range(5)).filter(lambda row: row["flag_score"] >= 0)
assert chosen.column_names == ["text", "labels", "flag_score"]
loader = DataLoader(
    load_dataset("someone/rows", split="train"),
    batch_size=4,
    collate_fn=lambda items: [(item["hypothesis"], item["label"]) for item in items],
    num_workers=2,
)
assert [label for _, label in next(iter(loader))] == [0, 1, 0, 1]

squad = load_dataset("rajpurkar/squad", split="train")
assert squad[0]["answers"] == {"text": ["the"], "answer_start": [0]}
try:
    squad.map(lambda row: {"text": {}["missing"]})
except KeyError:
    has_failed = True
assert has_failed
assert "missing" not in squad.column_names
torch.ones(1, device="cuda")
