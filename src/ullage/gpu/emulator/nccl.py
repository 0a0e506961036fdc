"""NCCL's own buffers on the card, as an interval by its rules: they lie outside PyTorch's allocator.

Two ranks that are connected on a channel have 12 MiB there, in pages of 2 MiB: buffers of the protocols LL (0.5 MiB),
LL128 (4.7) and Simple (4), and counters (NCCL 2.28, `src/transport/p2p.cc` and `src/init.cc`). How many channels there
are follows from the links between cards: 2 on PCIe, up to 32 over NVLink. A ring connects a rank with one pair of
neighbours, a tree with as many again within a machine, and with up to four pairs across machines; whatever sends to a
rank connects to it by as many channels. Multicast (NVLS, from Hopper on) has buffers of its own. docs/layouts.md has
the published measurements that this was compared with.
"""

from typing import Final

from ullage.base.units import MIB
from ullage.gpu.emulator.library import CommunicatorFigures

_CONNECTION_BYTES: Final = 12 * MIB
_FEWEST_CHANNELS: Final = 2
_MOST_CHANNELS: Final = 32
_PAIRS_IN_A_MACHINE: Final = 2
_PAIRS_ACROSS: Final = 5
_BESIDE_BYTES: Final = 128 * MIB
"""The most that was seen of a communicator beside its connections: queues of work, and its kernels."""
_MULTICAST_BYTES: Final = 512 * MIB
_HOPPER: Final = (9, 0)


def buffers_of(figures: CommunicatorFigures, capability: tuple[int, int], *, across: bool) -> tuple[int, int]:
    """Return the least and the most that NCCL's buffers take of one card, in bytes.

    Args:
        figures: the communicators that worked.
        capability: the card's compute capability.
        across: whether the ranks are on more than one machine.
    """
    most_pairs = _PAIRS_ACROSS if across else _PAIRS_IN_A_MACHINE
    most = _MOST_CHANNELS * most_pairs * _CONNECTION_BYTES + _BESIDE_BYTES
    if capability >= _HOPPER:
        most += _MULTICAST_BYTES
    by_peer = (_FEWEST_CHANNELS * _CONNECTION_BYTES, _MOST_CHANNELS * _CONNECTION_BYTES)
    # A communicator's first collective connects it; one that only sends has nothing but what it sends by.
    low = max(figures.communicators, figures.peers) * by_peer[0]
    return low, figures.communicators * most + figures.peers * by_peer[1]
