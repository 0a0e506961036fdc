"""Train a classifier of text pairs on the rows of a data set, as scripts for GLUE do, from a folder or from the hub."""

import sys

import torch
from datasets import load_dataset, load_from_disk
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

how, name, *more = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
data = load_from_disk(name) if how == "folder" else load_dataset(name, *more, split="train")
first, second, label = ("premise", "hypothesis", "label") if how == "asked" else ("sentence1", "sentence2", "label")


def encode(rows):
    texts = [one + " " + other for one, other in zip(rows[first], rows[second], strict=True)]
    return {**tokenizer(texts), "labels": rows[label]}


rows = data.map(encode, batched=True, remove_columns=data.column_names)
classes = data.features[label].num_classes
config = BertConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    num_labels=classes,
    vocab_size=len(tokenizer),
)
model = BertForSequenceClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(rows, batch_size=4, collate_fn=lambda items: tokenizer.pad(items, return_tensors="pt")):
    model(**{word: value.cuda() for word, value in batch.items()}).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
