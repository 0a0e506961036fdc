"""Texts of many lengths, trained by a library that goes round torch's DataLoader: its name is the argument."""

import random
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]
ACCUMULATE = int(sys.argv[2]) if len(sys.argv) > 2 else 1
random.seed(2)
torch.manual_seed(1)
LENGTHS = [1 + int(40 * random.random() ** 3) for _ in range(240)]


class Texts(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        return {"input_ids": torch.full((LENGTHS[index],), index % 97)}


def collate(items):
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "labels": ids.clone()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.head = nn.Linear(64, 1000)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.layer(self.embedding(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


model = Model()
loader = DataLoader(Texts(), batch_size=8, shuffle=True, collate_fn=collate)

if how == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
elif how == "lightning":
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def validation_step(self, batch, _):
            self.model(**batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=ACCUMULATE,
    )
    trainer.fit(Module(), loader, DataLoader(Texts(), batch_size=4, collate_fn=collate))
else:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=ACCUMULATE,
            save_strategy="no",
            report_to=[],
            group_by_length=how == "grouped",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=Texts(), data_collator=collate).train()
