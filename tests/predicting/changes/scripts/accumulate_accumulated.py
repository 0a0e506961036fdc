import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda"
accelerator = Accelerator(cpu=DEVICE == "cpu")
model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
x = torch.sin(torch.arange(4096 * 3 * 64, dtype=torch.get_default_dtype()) * 0.37).reshape(-1, 64)
loader = DataLoader(TensorDataset(x, torch.arange(4096 * 3) % 10), batch_size=4096)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for features, labels in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(features), labels)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
told = [parameter.detach().cpu() for parameter in model.parameters()]
