import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda"


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 10))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.sin(torch.arange(4096 * 3 * 64, dtype=torch.get_default_dtype()) * 0.37).reshape(-1, 64)
data = TensorDataset(x, torch.arange(4096 * 3) % 10)
model = Net()
trainer = L.Trainer(
    max_epochs=1,
    accelerator="cpu" if DEVICE == "cpu" else "gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    gradient_clip_val=0.5,
)
trainer.fit(model, DataLoader(data, batch_size=4096))
told = [parameter.detach().cpu() for parameter in model.parameters()]
