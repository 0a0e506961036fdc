"""What others do about memory that runs out, beside `ullage.Guard`, on the same faults: real packages, on the CPU.

    python benchmarks/guard/rivals.py [--only TEXT ...]

A fault is an error of PyTorch's allocator, raised before one operation of a step runs (tests/training/guard/faults.py),
or at every operation on more items than a limit. Everybody trains the same model on the same batches in float64. Beside
the parameters that the run without faults ends with, each item is counted with the weight that it had in the
optimizer's steps: one number of an extra parameter belongs to each item, and its gradient is that weight. Exits 1 where
the guard lost anything, or is further than 1e-12 from the run without faults.

Composer's own trainer takes micro-batches by itself on a GPU alone and asks for a torch before 2.7.1: what stands for
it here is its published rule, written anew (`composers_rule`).
"""

import argparse
import gc
import importlib
import importlib.metadata
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ullage

ullage.emulate("T4")  # torch's CUDA build asks for CUDA when it is imported; everything here runs on the CPU

import torch  # noqa: E402  # the card has to be there first
import torch.nn.functional as F  # noqa: E402  # the card has to be there first
from torch import Tensor, nn  # noqa: E402  # the card has to be there first

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.training.guard.faults import TEXT, Faults  # noqa: E402  # the card has to be there first

STEPS, ITEMS, WIDTH = 48, 16, 24
LIMIT_ITEMS = 6
BOUND = 1e-12
Batch = tuple[Tensor, Tensor, Tensor]


# ---- what is trained


class Model(nn.Module):
    """A small net; `share` has a number for each item, which adds nothing to the loss but has a gradient."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        hidden = [nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH), nn.GELU()]
        if not plain:
            hidden = [nn.Linear(WIDTH, 2 * WIDTH), nn.BatchNorm1d(2 * WIDTH), nn.ReLU(), nn.Dropout(0.2)]
        self.net = nn.Sequential(*hidden, nn.Linear(2 * WIDTH, 4))
        self.share = nn.Parameter(torch.zeros(STEPS * ITEMS, dtype=torch.float64))
        self.double()

    def loss(self, batch: Batch) -> Tensor:
        numbers, items, targets = batch
        return (F.cross_entropy(self.net(items), targets, reduction="none") + self.share[numbers]).mean()


def data() -> list[Batch]:
    """Items with their numbers, in the order of training."""
    generator = torch.Generator().manual_seed(7)
    items = torch.randn(STEPS * ITEMS, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 4, (STEPS * ITEMS,), generator=generator)
    return list(zip(torch.arange(STEPS * ITEMS), items, targets, strict=True))


class Schedule(Faults):
    """When memory runs out, the same for everybody."""

    def __init__(self, at: dict[int, int], *, limited: range = range(0), retries: Collection[int] = ()) -> None:
        """Take faults, a limit and the allocator's own retries.

        Args:
            at: steps, and the operation of each that fails, the first time that it is taken.
            limited: the steps in which no more than `LIMIT_ITEMS` items fit.
            retries: the steps in which the allocator had to empty its cache, without an error.
        """
        super().__init__()
        self._numbers = at
        self.limited = limited
        self._retries = retries
        self._begun: set[int] = set()
        self._is_limited = False
        self._is_unseen = False
        self.step = 0
        self.alloc_retries = 0

    def begin(self, step: int) -> None:
        """A contender begins a step, for the first time or again."""
        self.step = step
        self._is_limited = step in self.limited
        if step in self._begun:
            return
        self._begun.add(step)
        self.at.clear()  # a step that was shorter than the one they were drawn for
        self.alloc_retries += step in self._retries
        if step in self._numbers:
            self.at.add(self.count + self._numbers[step])

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What runs inside is no operation of a step."""
        self._is_unseen = True
        try:
            yield
        finally:
            self._is_unseen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_unseen or func.namespace != "aten":  # a profiler's marks allocate nothing
            return func(*args, **(kwargs or {}))
        if self._is_limited and func is torch.ops.aten.addmm.default and args[1].shape[0] > LIMIT_ITEMS:
            self.raised += 1
            raise torch.OutOfMemoryError(TEXT)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Run:
    """One contender's training: the model, its optimizer, and what became of each item."""

    def __init__(self, *, plain: bool, faults: Schedule) -> None:
        self._plain = plain
        self._data = data()
        self.faults = faults
        self.thrown_away = 0
        self.begin()

    def begin(self) -> None:
        """Make the model and its optimizer; anew, where there were some."""
        torch.manual_seed(0)
        self.model = Model(plain=self._plain)
        groups = [{"params": list(self.model.net.parameters())}, {"params": [self.model.share], "lr": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)
        self.weights = torch.zeros(STEPS * ITEMS, dtype=torch.float64)
        self.steps = 0

    def batches(self, size: int) -> Any:
        """A loader of batches of so many items, in order; what it does is no operation of a step."""

        def together(items: list[Batch]) -> Any:
            with self.faults.unseen():
                return torch.utils.data.default_collate(items)

        return torch.utils.data.DataLoader(self._data, batch_size=size, collate_fn=together)  # type: ignore[arg-type]  # a list

    def throw_away(self) -> None:
        """What was done so far counts no more."""
        self.thrown_away += self.steps
        self.weights = torch.zeros_like(self.weights)
        self.steps = 0

    def step(self) -> None:
        """The optimizer has made a step."""
        self.steps += 1
        gradient = self.model.share.grad
        assert gradient is not None
        with self.faults.unseen():
            self.weights += gradient * gradient.count_nonzero()  # that of a mean over as many items: 1 for each

    def counted(self) -> torch.optim.Optimizer:
        """The optimizer, every step of which is counted."""
        self.optimizer.register_step_post_hook(lambda *_: self.step())
        return self.optimizer


# ---- the contenders


def bare(run: Run) -> None:
    """A loop that skips the batch, as the threads advise."""
    optimizer = run.counted()
    for number, batch in enumerate(run.batches(ITEMS)):
        run.faults.begin(number)
        try:
            optimizer.zero_grad()
            run.model.loss(batch).backward()
            optimizer.step()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            optimizer.zero_grad()


def accelerates_decorator(run: Run) -> None:
    """As its documentation has it: model and optimizer are made inside, and begin anew with a smaller batch."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=ITEMS)  # type: ignore[untyped-decorator]  # it has no types
    def train(batch_size: int) -> None:
        run.throw_away()
        run.begin()
        optimizer = run.counted()
        for number, batch in enumerate(run.batches(batch_size)):
            run.faults.begin(number)
            optimizer.zero_grad()
            run.model.loss(batch).backward()
            optimizer.step()

    train()


def lightnings_finder(run: Run) -> None:
    """Its callback looks for a batch size of at most the wanted one by trial steps, and fits with what it found."""
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import BatchSizeFinder, Callback

    class Begin(Callback):  # type: ignore[misc]  # only there when the package is
        def on_train_start(self, trainer: Any, module: Any) -> None:
            """Called in the run alone, not in the finder's trials."""
            run.throw_away()
            module.is_trial = False

    class Module(lightning.LightningModule):  # type: ignore[misc]  # the same
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size, self.is_trial = run.model, ITEMS, True

        def training_step(self, batch: Any, number: int) -> Tensor:
            # Its trials have the memory of the first steps, and no fault that comes later.
            run.faults.begin(-1 if self.is_trial and 0 not in run.faults.limited else number)
            return self.model.loss(batch)

        def configure_optimizers(self) -> Any:
            return run.optimizer

        def train_dataloader(self) -> Any:
            return run.batches(self.batch_size)

    run.counted()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=folder,
            callbacks=[BatchSizeFinder(mode="power", init_val=2, max_val=ITEMS), Begin()],
        )
        trainer.fit(Module())


def composers_rule(run: Run) -> None:
    """`device_train_microbatch_size="auto"`, as its trainer's source and documentation describe it.

    Where memory runs out anywhere in a batch, or the allocator had to empty its cache in two batches running, the
    micro-batch is halved, gradients are dropped, and the same batch is taken once more. It never grows again.
    """
    optimizer = run.counted()
    size, retries_before, running = ITEMS, 0, 0
    for number, batch in enumerate(run.batches(ITEMS)):
        has_failed = False
        while True:
            run.faults.begin(number)
            is_out = False
            try:
                optimizer.zero_grad()
                for part in zip(*(tensor.split(size) for tensor in batch), strict=True):
                    (run.model.loss(part) * (len(part[0]) / len(batch[0]))).backward()
                optimizer.step()
            except RuntimeError as error:
                if not any(text in str(error) for text in ("CUDA out of memory", "CUDA error: out of memory")):
                    raise
                is_out, has_failed = True, True
            if not is_out and not has_failed:
                running = running + 1 if run.faults.alloc_retries > retries_before else 0
            if not is_out and running < 2:
                break
            if size == 1:
                raise RuntimeError("CUDA out of memory with a micro-batch of one item")
            size, running = max(size // 2, 1), 0
            optimizer.zero_grad()
        retries_before = run.faults.alloc_retries


def guard(run: Run) -> None:
    """`ullage.Guard`; what is called after each step stands where a scheduler would."""
    guard = ullage.Guard(run.model, run.optimizer, scheduler=run, log=lambda line: None)
    for number, batch in enumerate(run.batches(ITEMS)):
        run.faults.begin(number)
        guard.step(batch, run.model.loss)


CONTENDERS: dict[str, Callable[[Run], None]] = {
    "a loop that skips": bare,
    "accelerate {accelerate}, find_executable_batch_size": accelerates_decorator,
    "Lightning {pytorch-lightning}, BatchSizeFinder": lightnings_finder,
    "Composer's rule, written anew": composers_rule,
    "ullage.Guard": guard,
}


# ---- what they come to


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One contender under one schedule."""

    ended: str
    steps: int
    thrown_away: int
    dropped: int
    """Batches of the plan with an item that counted less than it should."""
    twice: int
    """Batches of the plan with an item that counted more."""
    error: float
    """The largest difference of a parameter from the run without faults."""
    seconds: float

    @property
    def is_whole(self) -> bool:
        lost = self.thrown_away + self.dropped + self.twice + (STEPS - self.steps)
        return self.ended == "yes" and not lost and self.error <= BOUND


def parameters_of(run: Run) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.net.parameters()])


def outcome_of(contender: Callable[[Run], None], *, plain: bool, faults: Schedule, expected: Tensor) -> Outcome:
    run = Run(plain=plain, faults=faults)
    ended = "yes"
    began = time.perf_counter()
    try:
        with faults:
            contender(run)
    except (RuntimeError, ValueError) as error:  # the second is BatchNorm's, which does not take one item
        ended = f"no, at batch {faults.step + 1}: {str(error).split('. ')[0][:72]}"
    seconds = time.perf_counter() - began
    of_batches = run.weights.view(STEPS, ITEMS)
    return Outcome(
        ended=ended,
        steps=run.steps,
        thrown_away=run.thrown_away,
        dropped=int((of_batches.amin(1) < 1 - 1e-6).sum()),
        twice=int((of_batches.amax(1) > 1 + 1e-6).sum()),
        error=float((parameters_of(run) - expected).abs().max()),
        seconds=seconds,
    )


def single_faults(operations: int) -> dict[int, int]:
    """An operation of every sixth step, one time: in forward, backward and the optimizer, by chance."""
    chance = random.Random(5)
    return {step: chance.randrange(operations) for step in chance.sample(range(STEPS), STEPS // 6)}


def schedules(operations: int) -> dict[str, tuple[bool, Callable[[], Schedule]]]:
    """By name: whether the model is the plain one, and the schedule."""
    singles = single_faults(operations)
    return {
        f"{len(singles)} single faults, anywhere in a step (BatchNorm, dropout)": (False, lambda: Schedule(singles)),
        f"never more than {LIMIT_ITEMS} of {ITEMS} items fit": (
            True,
            lambda: Schedule({}, limited=range(-1, STEPS * ITEMS)),
        ),
        f"the same from step {STEPS // 3 + 1} on": (
            True,
            lambda: Schedule({}, limited=range(STEPS // 3, STEPS * ITEMS)),
        ),
        "no error; the allocator empties its cache in two batches running": (
            True,
            lambda: Schedule({}, retries=(20, 21)),
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose name has one of these texts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # what a guard's first failure would import
    gc.freeze()  # a guard collects garbage after every failure: there is to be none but the run's own
    expected: dict[bool, Tensor] = {}
    operations = 0
    for plain in (True, False):
        run = Run(plain=plain, faults=Schedule({}))
        with run.faults:
            bare(run)
        expected[plain], operations = parameters_of(run), run.faults.count // STEPS
    is_kept = True
    for title, (plain, schedule) in schedules(operations).items():
        print(f"{title}; {STEPS} batches of {ITEMS}")
        print(f"  {'':52} {'steps':>6} {'thrown':>7} {'batches':>8} {'':>6} {'largest':>9} {'':>8}")
        print(f"  {'':52} {'made':>6} {'away':>7} {'dropped':>8} {'twice':>6} {'error':>9} {'seconds':>8}  finished")
        for name, contender in CONTENDERS.items():
            if not any(text in name for text in options.only):
                continue
            found = outcome_of(contender, plain=plain, faults=schedule(), expected=expected[plain])
            figures = f"{found.steps:6} {found.thrown_away:7} {found.dropped:8} {found.twice:6} {found.error:9.1e}"
            print(f"  {named(name):52} {figures} {found.seconds:8.2f}  {found.ended}", flush=True)
            is_kept &= contender is not guard or found.is_whole
    return 0 if is_kept else 1


def named(name: str) -> str:
    """Fill in the versions of the packages that a name names."""
    for package in ("accelerate", "pytorch-lightning"):
        if f"{{{package}}}" in name:
            name = name.replace(f"{{{package}}}", importlib.metadata.version(package))
    return name


if __name__ == "__main__":
    sys.exit(main())
