"""The interval of NCCL's own buffers holds what others have measured on real cards."""

import json
import subprocess
import sys

from ullage.base.units import GIB, MIB
from ullage.gpu.emulator.library import CommunicatorFigures
from ullage.gpu.emulator.profile import buffers_of


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


SENDS = """
import ctypes, json, sys
import ullage
ullage.emulate("H100")
from ullage.gpu.emulator import library
nccl = ctypes.CDLL(str(next(library.FOLDER.glob("1*/libullage_nccl.so"))))
told = []
def after(name, *arguments):
    before = library.communicators().sent_bytes
    assert getattr(nccl, name)(*arguments) == 0
    told.append(library.communicators().sent_bytes - before)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
for ranks in (1, 4):
    group = ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(group), ranks, Id(), 0) == 0
    count, bfloat16, float32 = ctypes.c_size_t(1000), 9, 7
    after("ncclAllReduce", None, None, count, float32, 0, group, None)
    after("ncclAllGather", None, None, count, bfloat16, group, None)
    after("ncclReduceScatter", None, None, count, float32, 0, group, None)
    after("ncclBroadcast", None, None, count, float32, 0, group, None)
    after("ncclAlltoAll", None, None, count, bfloat16, group, None)
    after("ncclSend", None, count, bfloat16, ranks - 1, group, None)
    after("ncclRecv", None, count, bfloat16, ranks - 1, group, None)
print(json.dumps(told))
"""


def test_what_a_rank_sends_is_counted_by_rings() -> None:
    """A group of one sends nothing; of four, a gather goes round in three rounds, a sum in twice three of a quarter."""
    done = subprocess.run([sys.executable, "-c", SENDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0] * 7 + [6000, 6000, 12000, 4000, 6000, 2000, 0]


CAPTURED = """
import ctypes, json
import ullage
ullage.emulate("H100")
from ullage.gpu.emulator import library
folder = next(library.FOLDER.glob("1*/libullage_nccl.so")).parent
nccl, cudart = (ctypes.CDLL(str(folder / f"libullage_{name}.so")) for name in ("nccl", "cudart"))
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
group, stream, graph, executable = (ctypes.c_void_p() for _ in range(4))
assert nccl.ncclCommInitRank(ctypes.byref(group), 4, Id(), 0) == 0
def gather():
    assert nccl.ncclAllGather(None, None, ctypes.c_size_t(1000), 9, group, None) == 0
told = []
def run(function, *arguments):
    before = library.communicators().sent_bytes
    assert function(*arguments) in (0, None)
    told.append(library.communicators().sent_bytes - before)
assert cudart.cudaStreamCreate(ctypes.byref(stream)) == 0
def capture():
    assert cudart.cudaStreamBeginCapture(stream, 0) == 0
    gather()
    gather()
    assert cudart.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
run(capture)
run(cudart.cudaGraphInstantiate, ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
assert cudart.cudaGraphDestroy(graph) == 0
run(cudart.cudaGraphLaunch, executable, stream)
run(cudart.cudaGraphLaunch, executable, stream)
run(gather)
print(json.dumps(told))
"""


def test_what_was_captured_is_sent_each_time_that_it_is_launched() -> None:
    done = subprocess.run([sys.executable, "-c", CAPTURED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0, 12000, 12000, 6000]
