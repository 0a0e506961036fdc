"""Check what a script may expect of the place in which it runs."""

import os
import sys
from pathlib import Path

import sibling

assert __name__ == "__main__"
assert sys.argv[1:] == ["--gpu", "mine", "an argument"], sys.argv
assert os.path.basename(sys.argv[0]) == "surroundings.py"
assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
assert "" not in sys.path
assert os.getcwd() not in sys.path
assert sys.stdin.read() == ""
assert sibling.VALUE == 7
assert Path("data.txt").read_text() == "relative to where the user is"
assert "torch" not in sys.modules, "torch is the script's to import"

os.environ["CUDA_VISIBLE_DEVICES"] = "1"
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch  # noqa: E402

assert torch.cuda.is_available()
assert torch.cuda.device_count() == 1
assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == 1
os.chdir("/")
model = torch.nn.Linear(8, 8).cuda()
assert torch.cuda.memory_snapshot()[0]["is_expandable"]
optimizer = torch.optim.SGD(model.parameters())
while True:
    if (child := os.fork()) == 0:
        model.cpu  # noqa: B018
        os._exit(0)
    os.waitpid(child, 0)
    model(torch.zeros(2, 8, device="cuda")).sum().backward()
    optimizer.step()
