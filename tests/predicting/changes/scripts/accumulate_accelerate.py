import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda"
accelerator = Accelerator(cpu=DEVICE == "cpu")
model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.sin(torch.arange(4096 * 3 * 64, dtype=torch.get_default_dtype()) * 0.37).reshape(-1, 64)
loader = DataLoader(TensorDataset(x, torch.arange(4096 * 3) % 10), batch_size=4096)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for features, labels in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(features), labels)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
told = [parameter.detach().cpu() for parameter in model.parameters()]
