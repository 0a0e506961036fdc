"""Ranks that train one model together: copies of a process with an emulated card, which talk over gloo."""

import json
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ullage
from tests.training.guard.faults import TEXT, Faults
from ullage.training.guard.ranks import RankError
from ullage.training.guard.splitting.batch import form_of

RANK, SIZE = 0, 1
"""Which rank of how many this process is; each copy has its own."""
FOLDER = Path()
"""Where each rank writes what it has found."""
LIMIT_SECONDS = 900

Found = dict[str, Any]


class Model(nn.Module):
    """With statistics that DDP shares, and a layer that only the first rank uses where `unused`."""

    def __init__(self, *, norm: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.outer = nn.Linear(16, 4)
        self.beside = nn.Linear(8, 4) if unused else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(torch.relu(self.norm(self.inner(batch))))
        return out + self.beside(batch) if self.beside is not None and RANK == 0 else out


def batches_of(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(RANK)

    def make(width: int) -> torch.Tensor:
        return torch.randn(8, width, dtype=torch.float64, generator=generator)

    return [(make(8), make(4)) for _ in range(steps)]


def built(**options: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    unused = options.get("unused", False)
    model = DistributedDataParallel(Model(**options).double(), find_unused_parameters=unused)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def left_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def bare(steps: int, **options: bool) -> torch.Tensor:
    model, optimizer = built(**options)
    for inputs, targets in batches_of(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return left_of(model)


def guarded(
    steps: int, faults: Callable[[int], Faults] = lambda step: Faults(), limit: int = 99, **options: bool
) -> tuple[torch.Tensor, list[str], int]:
    """Train; the faults of a step by its number, and the most items that fit."""
    model, optimizer = built(**options)
    said: list[str] = []
    guard = ullage.Guard(model, optimizer, splittable=True, log=said.append, timeout=timedelta(seconds=60))
    raised = 0

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch[0])
        if len(batch[0]) > limit:
            raise torch.OutOfMemoryError(TEXT)
        return nn.functional.mse_loss(out, batch[1])

    for number, batch in enumerate(batches_of(steps)):
        with faults(number) as injected:
            guard.step(batch, loss_of)
        raised += injected.raised
    return left_of(model), said, raised


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def is_same_everywhere(left: torch.Tensor) -> bool:
    every = [torch.empty_like(left) for _ in range(SIZE)]
    dist.all_gather(every, left)
    return all(torch.equal(left, other) for other in every)


def faulty(steps: int) -> Found:
    """The last rank is short of memory at random operations."""
    chance = random.Random(7)

    def faults(step: int) -> Faults:
        hit = RANK == SIZE - 1 and chance.random() < 0.3
        return Faults({chance.randrange(130)} if hit else ())

    without, with_faults = guarded(steps), guarded(steps, faults)
    return {
        "from_bare": gap(bare(steps), without[0]),
        "gap": gap(without[0], with_faults[0]),
        "same": is_same_everywhere(with_faults[0]),
        "raised": with_faults[2],
    }


def like_ddp() -> Found:
    """Buffers and parameters that not every rank uses."""
    every: list[dict[str, bool]] = [{"norm": True}, {"unused": True}]
    return {"gaps": [gap(bare(20, **options), guarded(20, **options)[0]) for options in every]}


def split() -> Found:
    """The last rank can take three items at once; all split as it does."""
    limit = 3 if RANK == SIZE - 1 else 99
    left, said, _ = guarded(12, limit=limit)
    model, optimizer = built()
    guard = ullage.Guard(model, optimizer, splittable=True, log=lambda line: None)
    sizes: list[list[int]] = []

    def loss_of(batch: Any) -> torch.Tensor:
        sizes[-1].append(len(batch[0]))
        if len(batch[0]) > limit:
            raise torch.OutOfMemoryError(TEXT)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    for batch in batches_of(3):
        sizes.append([])
        guard.step(batch, loss_of)
    return {"gap": gap(guarded(12)[0], left), "said": said, "sizes": sizes[1:], "same": is_same_everywhere(left)}


def ended(step: Callable[[Any], Any], steps: int = 4) -> Found:
    """Take steps until one raises; tell what."""
    for batch in batches_of(steps):
        try:
            step(batch)
        except (RankError, RuntimeError) as error:
            return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


def gives_up() -> Found:
    """Nothing fits on the last rank."""
    model, optimizer = built()
    guard = ullage.Guard(model, optimizer, splittable=False, log=lambda line: None)

    def loss_of(batch: Any) -> torch.Tensor:
        if RANK == SIZE - 1:
            raise torch.OutOfMemoryError(TEXT)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return ended(lambda batch: guard.step(batch, loss_of))


def dies() -> Found:
    """The last rank's process ends in the middle of a step."""
    model, optimizer = built()
    guard = ullage.Guard(model, optimizer)

    def loss_of(batch: Any) -> torch.Tensor:
        if RANK == SIZE - 1:
            os._exit(0)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return ended(lambda batch: guard.step(batch, loss_of))


def hangs() -> Found:
    """The last rank does not come back before the others have ended."""
    model, optimizer = built()
    guard = ullage.Guard(model, optimizer, timeout=timedelta(seconds=3))

    def loss_of(batch: Any) -> torch.Tensor:
        while RANK == SIZE - 1 and not found_by(0).exists():
            time.sleep(0.1)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return ended(lambda batch: guard.step(batch, loss_of))


def sharded(steps: int = 12) -> Found:
    """FSDP: every rank takes as many parts as the one that needs most; an error in the middle ends all."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))

    def trained(*, parts: int, with_guard: bool) -> tuple[torch.Tensor, set[int]]:
        torch.manual_seed(0)
        model = Model().double()
        for child in (model.inner, model.outer, model):
            fully_shard(child, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        guard = ullage.Guard(model, optimizer, splittable=True) if with_guard else None
        taken: set[int] = set()

        def loss_of(batch: Any) -> torch.Tensor:
            taken.add(len(batch[0]))
            return nn.functional.mse_loss(model(batch[0]), batch[1])

        for batch in batches_of(steps):
            if guard is None:
                optimizer.zero_grad()
                loss_of(batch).backward()
                optimizer.step()
                continue
            if parts > 1 and RANK == SIZE - 1:
                guard._ladder.plans.adopt(form_of(batch).shape, parts)
            guard.step(batch, loss_of)
        return torch.cat([one.full_tensor().detach().flatten() for one in model.parameters()]), taken

    expected, _ = trained(parts=1, with_guard=False)
    whole, _ = trained(parts=1, with_guard=True)
    parted, taken = trained(parts=4, with_guard=True)
    found = {"gaps": [gap(expected, whole), gap(expected, parted)], "sizes": sorted(taken)}
    torch.manual_seed(0)
    model = Model().double()
    fully_shard(model, mesh=mesh)
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), log=lambda line: None)

    def failing(batch: Any) -> torch.Tensor:
        out = model(batch[0])
        if RANK == SIZE - 1:
            raise torch.OutOfMemoryError(TEXT)
        return nn.functional.mse_loss(out, batch[1])

    return found | ended(lambda batch: guard.step(batch, failing))


def on_cards() -> Found:
    """The last rank's card is smaller: PyTorch's own allocator runs out there."""
    torch.cuda.set_per_process_memory_fraction(0.02 if RANK == SIZE - 1 else 0.5)
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda())
    said: list[str] = []
    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), splittable=True, log=said.append)
    sizes: list[set[int]] = []

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        sizes[-1].add(len(batch))
        return model(batch).square().mean()

    for _ in range(6):
        sizes.append(set())
        guard.step(torch.zeros(12288, 1024, device="cuda"), loss_of)
    return {"said": said, "sizes": [sorted(one) for one in sizes], "ooms": torch.cuda.memory_stats()["num_ooms"]}


SCENARIOS: dict[str, Callable[[], Found]] = {
    "faulty_200": lambda: faulty(200),
    "like_ddp": like_ddp,
    "split": split,
    "gives_up": gives_up,
    "dies": dies,
    "hangs": hangs,
    "sharded": sharded,
    "on_cards": on_cards,
}


def run(scenario: str, ranks: int = 2) -> list[Found]:
    """Run a scenario on so many ranks, and return what each has found: nothing, of one that ended within it."""
    global FOLDER
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        copies = [_copy(scenario, rank, ranks) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) for copy in copies]
        assert codes == [0] * ranks, "see standard error"
        files = [found_by(rank) for rank in range(ranks)]
        return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def found_by(rank: int) -> Path:
    return FOLDER / str(rank)


def _copy(scenario: str, rank: int, ranks: int) -> int:
    """Start one rank, and return the number of its process."""
    process = os.fork()
    if process == 0:
        try:
            _run(scenario, rank, ranks)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return process


def _run(scenario: str, rank: int, ranks: int) -> NoReturn:
    global RANK, SIZE
    RANK, SIZE = rank, ranks
    signal.alarm(LIMIT_SECONDS)
    warnings.resetwarnings()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/group", rank=rank, world_size=ranks)
    found_by(rank).write_text(json.dumps(SCENARIOS[scenario]()))
    os._exit(0)  # without the group's orderly end, which waits for ranks that are gone
