"""Start processes in every way that training scripts do; all of them see the card of this one."""

import io
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), float(index))


def use_gpu(rank: int, path: str) -> None:
    tensor = torch.zeros(1 << 20, device="cuda")
    with open(f"{path}/{rank}", "w") as file:
        file.write(f"{torch.cuda.get_device_name()} {torch.cuda.memory_allocated()} {tensor.device}")


if __name__ == "__main__":
    model = nn.Linear(16, 1).cuda()
    with tempfile.TemporaryDirectory() as folder:
        started = torch.multiprocessing.spawn(use_gpu, args=(folder,), nprocs=2, join=False)
        while not started.join():
            pass
        said = {Path(folder, str(rank)).read_text() for rank in (0, 1)}
    assert said == {f"{torch.cuda.get_device_name()} {4 << 20} cuda:0"}, said
    for method in multiprocessing.get_all_start_methods():
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        assert [batch.shape for batch in loader] == [(4, 16), (4, 16)], method
    assert isinstance(pickle.loads(pickle.dumps(Numbers())), Numbers)
    torch.save(Numbers(), stream := io.BytesIO())
    code = "import os, torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info(), os.environ.get('MINE'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    free, total = torch.cuda.mem_get_info()
    assert told.startswith(torch.cuda.get_device_name()), told
    assert f"{total})" in told, told
    assert told.endswith("loaded"), told
    optimizer = torch.optim.SGD(model.parameters())
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    while True:
        for batch in loader:
            model(batch.cuda()).sum().backward()
            optimizer.step()
