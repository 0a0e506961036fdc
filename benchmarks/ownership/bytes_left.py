"""Bytes still on the card after what people do to give them back, beside `ullage.release`: one row for each culprit.

    python -m benchmarks.ownership.bytes_left [--only NAME ...] [--write docs/bytes_left.md]

The culprits are the scripts of tests/training/ownership/scenarios, each of which ends with its variables still alive.
Every script and every way has a process of its own with an emulated T4; the figures are
torch.cuda.memory_allocated() and memory_reserved() after it. Exits 1 where `release` leaves a byte that its certificate
does not name, or one that could have been given back.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib.metadata
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ullage
from tests.training.ownership.scenarios.scenario import Entry, Scenario, entries, load
from tools.stale_pages import write_page
from ullage.base.units import text_of_bytes

CARD = "T4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is on the card after one way."""

    allocated_bytes: int
    reserved_bytes: int
    named_bytes: int = 0
    """What a certificate says remains, with who holds it."""
    holder: str = ""

    @property
    def text(self) -> str:
        """Allocated and reserved, for a cell of the table."""
        if not self.reserved_bytes:
            return "**0**"
        return " / ".join(
            text_of_bytes(value) if value else "0" for value in (self.allocated_bytes, self.reserved_bytes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One script, and what each way leaves of it; None where a way does not apply."""

    title: str
    stays: bool
    held: Left
    left: dict[str, Left | None]


# ---- the ways


def deleted(frame: FrameType, objects: list[Any], named: list[Any]) -> None:
    """Do as pages teach: the names are deleted, garbage is collected, the cache is given back."""
    import torch

    unbind(frame, names_of(frame, objects))
    del objects[:], named[:]
    gc.collect()
    torch.cuda.empty_cache()


def deleted_too(frame: FrameType, objects: list[Any], named: list[Any]) -> None:
    """Do the same as somebody who has read what a certificate names, as far as that has a name of its own."""
    objects += named
    deleted(frame, objects, named)


def accelerated(frame: FrameType, objects: list[Any], named: list[Any]) -> None:
    """`model, optimizer = release_memory(model, optimizer)`."""
    from accelerate.utils import release_memory

    names = names_of(frame, objects)
    del named[:]
    objects[:] = release_memory(*objects)  # while it runs, the caller's names hold on
    unbind(frame, names)


def torn_down(frame: FrameType, objects: list[Any], named: list[Any]) -> bool:
    """Do what Lightning's trainer does at its end with the module and the optimizers it has; then as pages teach."""
    import torch
    from lightning.pytorch import LightningModule
    from lightning.pytorch.accelerators import CUDAAccelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    modules = [one for one in objects if issubclass(type(one), torch.nn.Module)]
    known = [vars(one).get("optimizer", one) if hasattr(type(one), "get_last_lr") else one for one in objects + named]
    optimizers = [one for one in known if issubclass(type(one), torch.optim.Optimizer)]
    if not modules and not optimizers:
        return False
    strategy = SingleDeviceStrategy(device=torch.device("cuda", 0), accelerator=CUDAAccelerator())
    strategy._lightning_module = LightningModule()
    strategy._lightning_module.model = torch.nn.ModuleList(modules)
    strategy.optimizers = optimizers
    strategy.teardown()
    del strategy, modules, optimizers, known
    deleted(frame, objects, named)
    return True


WAYS: dict[str, Callable[[FrameType, list[Any], list[Any]], Any]] = {
    "del": deleted,
    "del, told": deleted_too,
    "accelerate": accelerated,
    "lightning": torn_down,
}


def names_of(frame: FrameType, objects: Iterable[Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the local and global names that a script has for objects."""
    known = {id(one) for one in objects}
    places = (frame.f_locals, frame.f_globals)
    return [(place, name) for place in places for name, value in place.items() if id(value) in known]


def unbind(frame: FrameType, names: list[tuple[dict[str, Any], str]]) -> None:
    """Bind names to None, which lets go what they held as `del` would."""
    for place, name in names:
        place[name] = None
    # Up to Python 3.12 local variables are a copy, which the frame keeps; afterwards this does nothing.
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


# ---- one script, one way


class _Ended(BaseException):
    """A script has come to its end."""


def after(way: str, scenario: Scenario) -> list[Left | None]:
    """Run a script; return what it held, and what is left after a way (after `release`: two times)."""
    found: list[Left | None] = []

    def end(*objects: Any, named: Any = ()) -> None:
        import torch

        torch.cuda.synchronize()
        found.append(now())
        given = list(objects)
        objects = ()
        if way != "release":
            others = list(named() if callable(named) else named)
            named = ()
            applies = WAYS[way](sys._getframe(1), given, others)
            found.append(now() if applies is not False else None)
            raise _Ended
        from ullage.training.ownership.release import release

        for more in ((), named() if callable(named) else named):
            certificate = release(*given, *more)
            rows = certificate.remaining
            holder = rows[0].path if len(rows) else ""
            found.append(now(named_bytes=rows.total_bytes, holder=holder))

    with contextlib.suppress(_Ended):  # what a script does afterwards may need the names that it has lost
        scenario.run(end)
    return found


def now(**known: Any) -> Left:
    """Ask PyTorch."""
    import torch

    return Left(allocated_bytes=torch.cuda.memory_allocated(), reserved_bytes=torch.cuda.memory_reserved(), **known)


def in_a_process(way: str, entry: Entry) -> list[Left | None]:
    """Do so in a process of its own, a copy of this one."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump([one and asdict(one) for one in after(way, load(entry))], pipe)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise RuntimeError(f"the process of {entry.name} ({way}) ended with {status}; expected 0: see its error above")
    return [one and Left(**one) for one in json.loads(text)]


def rows(only: list[str]) -> Iterator[Row]:
    """Run every script in every way."""
    for entry in entries():
        if entry.reason:
            print(f"left out: {entry.name}, because {entry.reason}", file=sys.stderr)
        if entry.reason or (only and entry.name not in only):
            continue
        left: dict[str, Left | None] = {}
        for way in WAYS:
            held, left[way] = in_a_process(way, entry)
        held, left["release"], left["again"] = in_a_process("release", entry)
        assert held is not None
        scenario = load(entry)
        print(entry.name, *(one.text if one else "-" for one in left.values()), sep=" | ", file=sys.stderr)
        yield Row(title=scenario.title, stays=scenario.stays, held=held, left=left)


# ---- the page


PAGE = """# Which GPU memory stays allocated after cleanup?

This page shows how much GPU memory stays allocated after `ullage.release` and after four usual ways to free GPU
memory. Each row of the table is one small script in which one object, the culprit, keeps GPU memory allocated (the
scripts are in `tests/training/ownership/scenarios`). The scripts of this table ran with torch {torch} on an emulated
{card}. When a script of this table ends, its variables are still alive, as in a notebook. Each cell of the table has
two figures that `torch.cuda` reports after the cleanup: allocated / reserved memory. **0** means that both are 0.
The following list explains the columns of the table.

* *held*: the memory before the cleanup.
* *del*: the memory after the obvious variables (the model, the optimizer) were deleted, and `gc.collect()` and
  `torch.cuda.empty_cache()` were called.
* *del with certificate*: the memory after deleting the model, the optimizer, and each variable that `ullage.release`
  reports as still holding GPU memory.
* *accelerate*: the memory after a call such as `model, optimizer = release_memory(model, optimizer)`, with the function
  `release_memory` of accelerate {accelerate}.
* *Lightning*: the memory after `strategy.teardown()` of Lightning {lightning} cleaned up the module and the optimizers,
  and their variables were deleted. If a script has neither a module nor an optimizer, the column *Lightning* shows "-".
* *release*: the memory after one call of `ullage.release` for the model and the optimizer. The script's variables
  still referred to the model and the optimizer.
* *release again*: the memory after a second call of `ullage.release`. The second call also received the objects that
  the first call had reported as still holding GPU memory.
* *named first*: the first holder of GPU memory that the first call of `ullage.release` reported.

| culprit | held | del | del with certificate | accelerate | Lightning | release | release again | named first |
|---|---|---|---|---|---|---|---|---|
{rows}

Of {count} scripts, each kind of cleanup freed all GPU memory in the following number of scripts: {sums}.
Summed over all scripts, the memory that `ullage.release` reports as still allocated differs from
`torch.cuda.memory_allocated()` by {unnamed}.
"""


def page(found: list[Row]) -> str:
    """Write the table."""
    import torch

    lines, clean = [], dict.fromkeys([*WAYS, "release", "again"], 0)
    for row in found:
        cells = [one.text if one else "-" for one in row.left.values()]
        first = row.left["release"]
        assert first is not None
        lines.append(
            "| " + " | ".join([row.title, row.held.text, *cells, f"`{first.holder}`" if first.holder else ""]) + " |"
        )
        for way, left in row.left.items():
            clean[way] += left is not None and not left.reserved_bytes
    names = {
        "del": "del",
        "del, told": "del with certificate",
        "accelerate": "accelerate",
        "lightning": "Lightning",
        "release": "release",
        "again": "release again",
    }
    return PAGE.format(
        torch=torch.__version__.partition("+")[0],
        card=CARD,
        accelerate=importlib.metadata.version("accelerate"),
        lightning=importlib.metadata.version("lightning"),
        rows="\n".join(lines),
        count=len(found),
        unnamed=text_of_bytes(sum(unnamed_bytes(row) for row in found)),
        sums=", ".join(f"{names[way]} {count}" for way, count in clean.items()),
    )


def unnamed_bytes(row: Row) -> int:
    """Return by how much the certificates are wrong."""
    both = (row.left["release"], row.left["again"])
    return sum(abs(one.named_bytes - one.allocated_bytes) for one in both if one is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="scripts of these names")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    ullage.emulate(CARD)
    import accelerate
    import lightning.pytorch
    import torch._dynamo

    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()  # what is there before a script begins is nobody's garbage
    found = list(rows(options.only))
    text = page(found)
    if options.write:
        write_page(options.write, text)
    else:
        print(text)
    del accelerate, lightning, torch
    wrong = 0
    for row in found:
        first, second = row.left["release"], row.left["again"]
        assert first is not None
        assert second is not None
        if unnamed_bytes(row) or (second.reserved_bytes and not row.stays):
            wrong += 1
            print(f"{row.title}: release leaves {first.text}, then {second.text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
