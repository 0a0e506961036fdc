"""A DataLoader with four workers that make images, and pinned batches."""

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Random images, made when they are asked for."""

    def __len__(self) -> int:
        """Return the number of images."""
        return 3 * 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Make one."""
        return torch.randn(3, 224, 224), index % 10


model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, 4), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for images, labels in DataLoader(Images(), batch_size=32, num_workers=4, pin_memory=True):
    torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
