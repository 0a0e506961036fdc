"""Memory figures that programs print are read: PyTorch's own against its statistics, and tables of vendors' tools."""

import json
import pickle
from pathlib import Path

import pytest

import ullage
from tests.shared.fresh import answer
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.recorded.message.printed_growth import GrowthSearch, PrintedGrowth
from ullage.recorded.message.printed_memory import MemoryPrinter, PrintedMemory, printed_in, statistics_of

MIB, GIB = 1 << 20, 1 << 30
CODE = """
import ullage
ullage.emulate("T4", context_bytes=200 << 20)
import torch
kept = [torch.empty(int(size) << 20, dtype=torch.uint8, device="cuda") for size in (100, 30, 5)]
del kept[1]
try:
    torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
nested = torch.cuda.memory_stats_as_nested_dict()
tell({"summary": torch.cuda.memory_summary(), "short": torch.cuda.memory_summary(abbreviated=True),
      "stats": dict(torch.cuda.memory_stats()), "printed": str(torch.cuda.memory_stats()),
      "nested": {name: nested[name] for name in ("allocated_bytes", "reserved_bytes", "num_ooms")}})
"""


def only(text: str) -> PrintedMemory:
    [(_, found)] = list(printed_in(text, 0, len(text)))
    return found


def test_what_torch_prints_has_the_figures_of_its_statistics() -> None:
    found = answer(CODE)
    stats = found["stats"]
    for text in (found["summary"], found["short"]):
        read = only(text)
        assert (read.printer, read.device) == (MemoryPrinter.MEMORY_SUMMARY, 0)
        assert (read.failures, read.retries) == (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
        for size, name in (
            (read.allocated_bytes, "allocated_bytes.all.current"),
            (read.peak_allocated_bytes, "allocated_bytes.all.peak"),
            (read.reserved_bytes, "reserved_bytes.all.current"),
            (read.split_bytes, "inactive_split_bytes.all.current"),
        ):
            assert size is not None
            assert abs(size - stats[name]) < MIB, "the table rounds to its unit"
    for read in (only(found["printed"]), statistics_of(stats), statistics_of(found["nested"])):
        assert read is not None
        assert read.allocated_bytes == stats["allocated_bytes.all.current"]
        assert (read.reserved_bytes, read.failures) == (stats["reserved_bytes.all.current"], 1)


def test_statistics_in_a_file_are_read_in_every_form(tmp_path: Path) -> None:
    stats = {"allocated_bytes.all.current": 50 * GIB, "reserved_bytes.all.current": 75 * GIB, "num_ooms": 3}
    stats["inactive_split_bytes.all.current"] = 25 * GIB
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    (tmp_path / "stats.pickle").write_bytes(pickle.dumps(stats))
    (tmp_path / "stats.txt").write_text(str(stats))
    for file in sorted(tmp_path.iterdir()):
        found = ullage.explain(file)
        assert found.cause is Cause.FRAGMENTED, file
        assert "3 out-of-memory errors" in found.sentence
        assert "25.00 GiB of the 75.00 GiB" in found.sentence


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.pickle").write_bytes(pickle.dumps({"epoch": 3, "num_ooms": "many"}))
    with pytest.raises(ullage.SnapshotError, match="neither segments nor device_traces"):
        ullage.explain(tmp_path / "other.pickle")


NVIDIA = """\
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
|   0  NVIDIA GeForce RTX 4090        Off |   00000000:01:00.0 Off |                  Off |
|  0%   45C    P8             22W /  450W |   23012MiB /  24564MiB |      0%      Default |
|   1  NVIDIA GeForce RTX 4090        Off |   00000000:41:00.0 Off |                  Off |
|  0%   40C    P8             20W /  450W |       1MiB /  24564MiB |      0%      Default |
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A       999    G     /usr/lib/xorg/Xorg                             12MiB |
|    0   N/A  N/A      1234    C     python                                      22990MiB |
"""
ASCEND = """\
| npu-smi 24.1.rc1                 Version: 24.1.rc1                                             |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 0     910B3               | OK            | 95.5        42                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          62310/ 65536         |
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 12345         | python                   | 58012                   |
"""
AMD = "GPU[0]\t\t: VRAM Total Memory (B): 17163091968\nGPU[0]\t\t: VRAM Total Used Memory (B): 17000000000\n"


def test_tables_of_vendors_tools_are_read() -> None:
    first, second = [found for _, found in printed_in(NVIDIA, 0, len(NVIDIA))]
    assert (first.device, first.used_bytes, first.total_bytes) == (0, 23012 * MIB, 24564 * MIB)
    assert [(process.number, process.name) for process in first.processes] == [
        (1234, "python"),
        (999, "/usr/lib/xorg/Xorg"),
    ]
    assert (second.device, second.used_bytes, second.processes) == (1, MIB, ())
    npu = only(ASCEND)
    assert (npu.used_bytes, npu.total_bytes) == (62310 * MIB, 65536 * MIB)
    assert npu.processes[0].used_bytes == 58012 * MIB
    assert (only(AMD).used_bytes, only(AMD).total_bytes) == (17000000000, 17163091968)
    alone = explain_text(NVIDIA)
    assert alone.cause is Cause.DID_NOT_FAIL
    assert "python (process 1234) 22.45 GiB" in alone.sentence


def test_a_table_says_who_holds_the_gpu_when_the_error_has_no_figures() -> None:
    traceback = '  File "/w/a.py", line 3, in <module>\n    torch.cuda.set_device(0)\n'
    found = explain_text(f"{NVIDIA}\nTraceback (most recent call last):\n{traceback}CUDA error: out of memory\n")
    assert found.cause is Cause.OTHER_PROCESS
    assert "python (process 1234)" in found.sentence


def grows(sizes: list[float], text: str = "step {}: loss 2.5, memory {} GiB") -> TextExplanation | None:
    rows = [text.format(step, size) for step, size in enumerate(sizes)]
    return explain_text("\n".join([*rows, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"]))


def test_memory_that_grows_from_line_to_line_is_probably_a_leak() -> None:
    found = grows([10.0 + step / 2 for step in range(20)])
    assert found is not None
    assert found.likely is Cause.LEAK
    assert "10.00 GiB to 19.50 GiB in 20 lines" in found.sentence
    assert ".detach()" in found.remedies[0].name
    flat = grows([12.0, 12.5, 12.1, 12.5, 12.2, 12.5, 12.4])
    assert flat is not None
    assert flat.likely is not Cause.LEAK


def test_what_is_downloaded_or_loaded_is_no_leak() -> None:
    for text in ("Downloading shard {}: {} GB memory", "step {} {}% | {} GB/s"):
        rows = "\n".join(text.format(step, 5 + step, 5 + step) for step in range(12))
        assert growth_in(rows) is None


def growth_in(text: str, piece: int = 1 << 20) -> PrintedGrowth | None:
    search = GrowthSearch()
    for at in range(0, len(text), piece):
        search.add(text[at : at + piece])
    return search.growth()


def test_growth_is_found_in_a_log_of_any_length() -> None:
    """Logs of more than 1 MiB were not searched."""
    other = "INFO: worker 3 has read a batch of images in 0.04 s\n" * 600
    rows = [f"{other}step {step}: loss 2.5, memory {10 + step / 2} GiB\n" for step in range(80)]
    assert len("".join(rows)) > 2 << 20
    found = growth_in("".join(rows))
    assert found is not None
    assert (found.row, found.last_row, found.count) == (601, 80 * 601, 80)
    assert (found.first_bytes, found.last_bytes) == (10 * GIB, int(49.5 * GIB))
    explained = explain_text("".join([*rows, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"]))
    assert explained.likely is Cause.LEAK


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\n" + "x" * 400 + "\n", "\n" + "y" * 2000 + "\r"])
def test_growth_is_the_same_wherever_a_piece_of_the_log_ends(line_end: str) -> None:
    rows = [f"[rank{step % 2}]: step {step}: memory {10 + step / 2} GiB, {3 + step} MiB" for step in range(40)]
    text = line_end.join(rows)
    whole = growth_in(text)
    assert whole is not None
    assert whole.count == 20
    assert all(growth_in(text, piece) == whole for piece in (1, 7, 100, 999))


def test_many_forms_of_lines_take_little_memory() -> None:
    letters = "abcdefghijklmnop"
    names = ("".join(letters[number >> shift & 15] for shift in (0, 4, 8, 12)) for number in range(60_000))
    search = GrowthSearch()
    search.add("".join(f"step {name} memory 3 GiB\n" for name in names))
    assert len(search._series) <= 20_000
