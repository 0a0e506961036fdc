"""Read PyTorch's allocator history after every step, and give each memory block a number."""

# PyTorch keeps this history in a ring buffer. It is read at the end of every step, so that the ring never overflows;
# each piece has the memory requests of one step.

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from ullage.predicting.epoch.requests import Ints, RequestRows
from ullage.recorded.program import Op

ACTIONS: Final = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "other"),
)
_NUMBERS: Final = {action: number for number, action in enumerate(ACTIONS)}
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = range(3)


class Ledger:
    """Reads the history of PyTorch's allocator, and gives each memory block a number."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self._clear = clear
        # The allocator events as columns: action, address, size and stream.
        self._events: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._live: dict[int, int] = {}
        self._waiting: set[int] = set()
        self.alive = bytearray()
        """One byte per memory block: 1 if the block is alive."""
        self.late_frees = 0
        """The number of memory blocks that were freed late because another CUDA stream used them."""
        self.device = 0
        self.settings: Mapping[str, Any] = {}

    def take(self) -> RequestRows:
        """Return the memory requests that the allocator has recorded since the last call of this method."""
        if not torch.cuda.is_initialized():
            return RequestRows.joined([])
        recorded = torch._C._cuda_memorySnapshot(None)
        self._clear()
        self.settings = recorded.get("allocator_settings", {})
        traces = recorded["device_traces"]
        if not self._events:
            self.device = max(range(len(traces)), key=lambda device: len(traces[device]))
        trace = traces[self.device]
        columns = (
            np.array([_NUMBERS.get(event["action"], len(ACTIONS) - 1) for event in trace], np.int64),
            np.array([event.get("addr", event.get("device_free", 0)) for event in trace], np.uint64).astype(np.int64),
            np.array([event["size"] for event in trace], np.int64),
            np.array([event.get("stream", 0) for event in trace], np.uint64).astype(np.int64),
        )
        self._events.append(columns)
        return self._numbered(*columns)

    def _numbered(self, actions: Ints, addresses: Ints, sizes: Ints, streams: Ints) -> RequestRows:
        live, alive = self._live, self.alive
        keys, kept = [], []
        just_freed = -1
        for place, (action, address) in enumerate(zip(actions.tolist(), addresses.tolist(), strict=True)):
            if action == _ALLOC:
                live[address] = len(alive)
                keys.append(len(alive))
                alive.append(1)
                kept.append(place)
            elif action == _FREE_REQUESTED:
                just_freed = address
                continue
            elif action == _FREE_COMPLETED and address in live:
                self.late_frees += address != just_freed
                number = live.pop(address)
                alive[number] = 0
                keys.append(number)
                kept.append(place)
            just_freed = -1
        at = np.array(kept, np.int64)
        frees = actions[at] == _FREE_COMPLETED
        return RequestRows(
            np.where(frees, int(Op.FREE), int(Op.ALLOCATE)),
            np.array(keys, np.int64),
            np.where(frees, 0, sizes[at]),
            np.where(frees, 0, streams[at]),
        )

    def history(self) -> "TakenHistory":
        """The allocator events so far, in the format of PyTorch's memory snapshots."""
        return TakenHistory(self._events)


class TakenHistory(Sequence[Mapping[str, Any]]):
    """A lazy sequence of allocator events in the format of PyTorch's memory snapshots."""

    def __init__(self, pieces: Sequence[tuple[Ints, Ints, Ints, Ints]]) -> None:
        self._pieces = list(pieces)

    def __len__(self) -> int:
        return sum(len(piece[0]) for piece in self._pieces)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for piece in self._pieces:
            for action, address, size, stream in zip(*(column.tolist() for column in piece), strict=True):
                yield {"action": ACTIONS[action], "addr": address, "size": size, "stream": stream, "frames": ()}

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]
