"""A BERT classifier of transformers in a loop of Accelerate."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

accelerator = Accelerator()
model = BertForSequenceClassification(BertConfig(num_hidden_layers=6))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
data = TensorDataset(torch.randint(0, 30000, (512, 384)), torch.randint(0, 2, (512,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
for tokens, labels in loader:
    loss = model(input_ids=tokens, labels=labels).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
