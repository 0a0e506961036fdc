"""Random programs on emulated cards, recorded by PyTorch, explained, and compared with PyTorch's own figures.

    python -m tests.explaining.analysis.recordings [--seed N] [--programs N] [--operations N] [--wide]

Several cards, streams and private pools, expandable segments whose pages are given back, recordings that begin with the
process or later, and that end with a request that fails or without one. With --wide pools come and go, with expandable
segments too: what the file does not say of those is not always found. For every card: what is allocated, reserved and
waiting at the end, and both peaks since recording began; whether a request failed, on which card and of what size. It
imports torch once and forks a process for every program. Exit code 0: all equal; 1: the seeds of those that differ.
"""

import argparse
import os
import random
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import ullage
from tests.shared.random_programs import in_a_fork, known_confs, set_settings

MIB = 1 << 20
CARDS, CARD_BYTES, CONTEXT_BYTES = 3, 1 << 30, 64 * MIB
ullage.emulate("1GiB", context_bytes=CONTEXT_BYTES, count=CARDS, values="off")  # before torch is imported

import torch  # noqa: E402  the cards have to be there first
import torch._inductor  # noqa: E402  PyTorch imports it for every snapshot: once here, not in every program's process

from ullage.explaining.analysis.assumption import closest  # noqa: E402  after the cards
from ullage.explaining.analysis.card import card_to_explain, recorded_cards  # noqa: E402
from ullage.explaining.analysis.explain import explain  # noqa: E402
from ullage.explaining.analysis.recording import Recording  # noqa: E402
from ullage.recorded.history import Action, History  # noqa: E402
from ullage.recorded.rebuild import program_of  # noqa: E402
from ullage.recorded.settings import semantics_of  # noqa: E402
from ullage.recorded.snapshot.snapshot import load_snapshot  # noqa: E402

SEMANTICS = semantics_of(torch.__version__)
IS_WIDE = "--wide" in sys.argv
KEPT: list[Any] = []
"""Until its process ends: a MemPool's destructor counts its users."""


class OnOneCard:
    """What a random program does on one card."""

    def __init__(self, chance: random.Random, device: int, *, has_pools: bool) -> None:
        self.chance = chance
        self.device = device
        self.streams = [torch.cuda.default_stream(device), *(torch.cuda.Stream(device) for _ in range(2))]
        self.has_pools = has_pools
        self.pools: list[tuple[Any, list[torch.Tensor]]] = [self.new_pool() for _ in range(2)] if has_pools else []
        self.alive: list[torch.Tensor] = []

    def new_pool(self) -> tuple[Any, list[torch.Tensor]]:
        """Return a private pool, and the blocks that are alive in it: none."""
        with torch.cuda.device(self.device):
            return torch.cuda.MemPool(), []

    def size(self) -> int:
        """Return a size for the next request, in bytes."""
        shape = self.chance.random()
        if shape < 0.4:
            return self.chance.randint(1, MIB)
        if shape < 0.5:
            return self.chance.choice((512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB))
        return self.chance.randint(MIB, 30 * MIB) if shape < 0.9 else self.chance.randint(20 * MIB, 200 * MIB)

    def step(self) -> None:
        """Do one thing; a request may fail."""
        act = self.chance.choices(
            (self.allocate, self.free, self.free_many, self.use_elsewhere, self.clean, self.drop_pool),
            (100, 70, 1, 8, 2, 1 if self.pools and IS_WIDE else 0),
        )[0]
        with torch.cuda.device(self.device):
            act()

    def allocate(self) -> None:
        stream = self.chance.choice(self.streams if self.chance.random() < 0.3 else self.streams[:1])
        size = self.size()
        with torch.cuda.stream(stream):
            if self.pools and self.chance.random() < 0.3:
                pool, alive = self.chance.choice(self.pools)
                with torch.cuda.use_mem_pool(pool):
                    (alive if IS_WIDE else self.alive).append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            else:
                self.alive.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def free(self) -> None:
        there = [alive for alive in (self.alive, *(alive for _, alive in self.pools)) if alive]
        if there:
            alive = self.chance.choice(there) if len(there) > 1 else there[0]
            alive.pop(self.chance.randrange(len(alive)))

    def free_many(self) -> None:
        for _ in range(len(self.alive) // 2):
            self.free()

    def use_elsewhere(self) -> None:
        if self.alive and not self.has_pools:
            self.chance.choice(self.alive).record_stream(self.chance.choice(self.streams))

    def drop_pool(self) -> None:
        """Free all of a pool, let go of it, and now and then make another."""
        number = self.chance.randrange(len(self.pools))
        self.pools[number][1].clear()
        torch.cuda.synchronize()
        del self.pools[number]
        if self.chance.random() < 0.5:
            self.pools.append(self.new_pool())

    def clean(self) -> None:
        (torch.cuda.empty_cache if self.chance.random() < 0.5 else torch.cuda.synchronize)()


def facts_of(device: int) -> dict[str, int]:
    """PyTorch's own figures of one card, in bytes."""
    stats = torch._C._cuda_memoryStats(device)
    now = {name: stats[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved", "active")}
    peaks = {f"peak_{name}": stats[f"{name}_bytes"]["all"]["peak"] for name in ("allocated", "reserved")}
    return now | peaks


def explained_facts_of(history: History, room: int | None) -> dict[str, int]:
    """The same figures by a replay of the recording; of a file in which nothing is asked for only those of the end."""
    evidence = explain(history, capacity_bytes=room).evidence
    if not history.has_requests:
        names = ("allocated", "reserved")
        return {name: evidence[f"{name}_bytes"] for name in names}
    rebuilt = closest(history, capacity_bytes=room).program_of(history, capacity_bytes=room)
    now = Recording.of(history, rebuilt).done.now
    return {
        "allocated": now.allocated_bytes,
        "reserved": now.reserved_bytes,
        "active": now.active_bytes,
        "peak_allocated": evidence["peak_allocated_bytes"],
        "peak_reserved": evidence["peak_reserved_bytes"],
    }


def differences_of(history: History, theirs: dict[str, int]) -> list[str]:
    """What differs of one card's figures, by the file alone or, where no request failed, with the card's room told.

    Where no request failed, a file does not tell whether a cache was given back for lack of room, and what the
    allocator does then is not what `empty_cache` does.
    """
    rooms = [None] if (history.action == Action.OOM).any() else [None, CARD_BYTES - CONTEXT_BYTES]
    for room in rooms:
        ours = explained_facts_of(history, room)
        found = [
            f"card {history.device}: {name}: torch {theirs[name]}, explained {value}"
            for name, value in ours.items()
            if theirs[name] != value and not is_within_the_unsaid(history, name, theirs[name] - value)
        ]
        if not found:
            break
    return found


def is_within_the_unsaid(history: History, name: str, missing_bytes: int) -> bool:
    """Whether a peak is less by what no file says: rests, up to 1 MiB, that were not split off older blocks.

    Of a block that was there before and is freed the file has what was asked for; where free memory follows, nothing
    tells how much of it belonged to the block.
    """
    if name != "peak_allocated":
        return False
    unsaid = 0
    for segment in program_of(history).program.start:
        for (_, _, key), (rest, _, after) in pairwise(segment.blocks):
            if key >= 0 and after == -1 and not segment.is_small and not segment.is_expandable:
                unsaid += min(MIB, rest)
    return 0 < missing_bytes <= unsaid


def run(seed: int, operations: int) -> tuple[int, str]:
    """Run, record and explain one program; return how many cards were compared, and what differs, if anything."""
    chance = random.Random(seed)
    conf = chance.choice(known_confs(SEMANTICS))
    has_pools = chance.random() < 0.3 and (IS_WIDE or "expandable_segments:True" not in conf)
    if conf:
        set_settings(conf)
    torch.cuda.init()
    cards = [OnOneCard(chance, device, has_pools=has_pools) for device in range(chance.choice((1, 1, 2, CARDS)))]
    KEPT.append(cards)
    begins = 0 if chance.random() < 0.4 else chance.randrange(operations // 2)
    failed: tuple[int, str] | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(os.environ.get("RECORDINGS_KEPT_IN", folder)) / "recording.pickle"
        for number in range(operations):
            if number == begins:
                for card in cards:
                    torch.cuda.reset_peak_memory_stats(card.device)
                torch.cuda.memory._record_memory_history(stacks="python")
            card = chance.choice(cards)
            try:
                card.step()
            except torch.cuda.OutOfMemoryError as error:
                if number >= begins:
                    failed = card.device, str(error)
                    break
        facts = {card.device: facts_of(card.device) for card in cards}
        torch.cuda.memory._dump_snapshot(str(path))
        histories = load_snapshot(path).devices
    compared = sum(device in histories and len(histories[device]) > 0 for device in facts)
    under = f"under {conf!r}, {len(cards)} cards{', pools' if has_pools else ''}, recorded from operation {begins}"
    return compared, " | ".join(f"{text}, {under}" for text in differences(histories, facts, failed))


def differences(histories: Any, facts: dict[int, dict[str, int]], failed: tuple[int, str] | None) -> list[str]:
    """Compare what explanations say with what PyTorch said."""
    found = []
    for device, theirs in facts.items():
        if device not in histories or not len(histories[device]):
            continue
        found += differences_of(histories[device], theirs)
    if failed is not None:
        device = card_to_explain(recorded_cards(histories))
        evidence = explain(histories[device]).evidence
        if device != failed[0] or "requested_bytes" not in evidence:
            found.append(f"card {failed[0]} failed, card {device} is explained as {sorted(evidence)}")
        elif not any(f"{size / MIB:.2f} MiB" in failed[1] for size in _as_torch_says(evidence)):
            found.append(f"{evidence['requested_bytes']} are said to have failed: {failed[1]}")
    return found


def _as_torch_says(evidence: dict[str, int]) -> tuple[int, int]:
    """Return what the error may name: the segment that was needed, or what it would be without expandable segments."""
    return evidence["needed_segment_bytes"], -(-evidence["requested_bytes"] // (2 * MIB)) * 2 * MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(6), "little"))
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--operations", type=int, default=300)
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args()
    compared, wrong = 0, 0
    for seed in range(options.seed, options.seed + options.programs):
        cards, said = in_a_fork(run, seed, options.operations)
        compared += cards
        if said:
            wrong += 1
            print(f"seed {seed}: {said}", flush=True)
    if wrong:
        again = "python -m tests.explaining.analysis.recordings --programs 1 --seed N"
        print(f"{wrong} of {options.programs} differ; again: {again}")
        return 1
    print(f"torch {torch.__version__}: {options.programs} recordings of {compared} cards: equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
