"""Ends while a worker of torch.compile still loads torch, as it seems: both have a temporary folder by then.

The worker's pool is torch's own in all that its exit handler asks of it.
"""

import os
import subprocess
import sys
import tempfile

os.environ["TORCH_WARM_POOL"] = "0"  # no other workers
import torch
import torch._inductor.async_compile as compiler

kept = tempfile.TemporaryDirectory()
worker = "_inductor/compile_worker/__main__.py"
os.makedirs(os.path.dirname(worker))
with open(worker, "w") as file:
    file.write("import tempfile, time; kept = tempfile.TemporaryDirectory(); print(flush=True); time.sleep(600)")


class Pool:
    """A pool that waits for its worker."""

    process = subprocess.Popen([sys.executable, worker], stdout=subprocess.PIPE)

    def shutdown(self) -> None:
        """Do what torch's does."""
        self.process.wait(300)


Pool.process.stdout.readline()
compiler._pool_set.add(Pool())
torch.zeros(1 << 20, device="cuda")
