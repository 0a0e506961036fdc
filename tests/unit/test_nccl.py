"""The interval of NCCL's own buffers holds what others have measured on real cards."""

from ullage._units import GIB, MIB
from ullage.emulator.library import CommunicatorFigures
from ullage.emulator.nccl import buffers_of


def interval(communicators: int, peers: int, capability: tuple[int, int], *, across: bool = False) -> tuple[int, int]:
    return buffers_of(CommunicatorFigures(communicators=communicators, peers=peers), capability, across=across)


def test_published_measurements_lie_within() -> None:
    """github.com/NVIDIA/nccl/issues/964 (A100, all-reduce of two, and of three or four ranks) and 1685 (H100)."""
    low, high = interval(1, 0, (8, 0))
    assert low < 544 * MIB < 688 * MIB < high
    low, high = interval(1, 7, (9, 0))
    assert low < (4.34 - 1.06) * 10**9 < (4.34 - 1.06) * GIB < high


def test_more_communicators_peers_and_machines_are_more() -> None:
    assert interval(0, 0, (8, 0)) == (0, 0)
    assert interval(1, 0, (8, 0)) == (24 * MIB, 896 * MIB)
    assert interval(3, 0, (8, 0)) == (72 * MIB, 3 * 896 * MIB)
    assert interval(1, 2, (8, 0)) == (48 * MIB, (896 + 2 * 384) * MIB)
    assert interval(1, 0, (9, 0)) == (24 * MIB, 1408 * MIB)
    assert interval(3, 0, (8, 0), across=True)[1] == 3 * 2048 * MIB
