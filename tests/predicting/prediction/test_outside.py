"""What a library takes of the card beside PyTorch's allocator: in the report, in the interval, and in the JSON."""

from pathlib import Path

from tests.shared.commands import Predict

SCRIPT = """
import ctypes, torch
runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
address = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(SIZE)) == 0
assert runtime.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(8 << 20), 1) == 0
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_it_is_told_and_counts(predict: Predict, workplace: Path) -> None:
    (workplace / "beside.py").write_text(SCRIPT.replace("SIZE", "96 << 20"))
    (workplace / "alone.py").write_text(SCRIPT.replace("SIZE", "0"))
    beside = predict(workplace / "beside.py", "--json").json
    alone = predict(workplace / "alone.py", "--json").json
    (use,) = beside["outside"]["uses"]  # ctypes calls through one library, whose name is the machine's
    assert [use["bytes"], use["peak_bytes"], use["managed_peak_bytes"]] == [96 << 20, 96 << 20, 8 << 20]
    assert use["calls"] == 2
    assert beside["outside"]["peak_bytes"] == 96 << 20
    assert alone["outside"]["peak_bytes"] == 0
    assert [b - a for b, a in zip(beside["interval_bytes"], alone["interval_bytes"], strict=True)] == [96 << 20] * 2
    assert alone["headroom_bytes"] - beside["headroom_bytes"] == 96 << 20
    text = predict(workplace / "beside.py").text
    assert "outside PyTorch's allocator 96.0 MiB" in text
    assert "8.0 MiB of managed memory, which is host memory" in text


def test_a_card_that_a_library_fills_is_said_to_be_full(predict: Predict, workplace: Path) -> None:
    larger = SCRIPT.replace("SIZE", "96 << 20").replace("Linear(1024, 1024", "Linear(1024, 16384")
    (workplace / "full.py").write_text(larger)
    told = predict(workplace / "full.py", "--context", "830MiB", "--json", gpu="1GiB").json
    assert told["verdict"] == "does not fit"
    assert told["oom"]["requested_bytes"] == 64 << 20
    left = (1024 - 830 - 96 << 20) - told["oom"]["reserved_bytes"]
    assert f"requested 64.0 MiB, with {left / (1 << 20):.1f} MiB free" in told["reason"]


def test_what_is_free_when_memory_runs_out_is_what_the_driver_says_then(predict: Predict, workplace: Path) -> None:
    """A library took 512 MiB and gave them back long before: they are free, and what is held now is not."""
    script = """
import ctypes, torch
runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
address = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(512 << 20)) == 0
assert runtime.cudaFree(address) == 0
assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(600 << 20)) == 0
small = torch.ones(8, device="cuda")
x = torch.empty(400 << 20, dtype=torch.uint8, device="cuda")
"""
    (workplace / "out.py").write_text(script)
    told = predict(workplace / "out.py", "--context", "124MiB", "--json", gpu="1GiB").json
    assert told["verdict"] == "does not fit"
    assert "with 298.0 MiB free" in told["reason"]


def test_a_limit_of_the_process_does_not_fit_however_much_is_free(predict: Predict, workplace: Path) -> None:
    (workplace / "limit.py").write_text(
        "import torch\ntorch.cuda.set_per_process_memory_fraction(0.2)\n"
        "x = torch.empty(400 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    told = predict(workplace / "limit.py", "--context", "124MiB", "--json", gpu="1GiB").json
    assert told["verdict"] == "does not fit"


def test_pages_that_a_library_asks_for_without_a_name_count_too(predict: Predict, workplace: Path) -> None:
    """cuMemCreate hands out pages, which a library maps itself."""
    script = """
import ctypes, torch
torch.ones(8, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int), ("device", ctypes.c_int),
                ("more", ctypes.c_byte * 64)]
handle = ctypes.c_uint64()
wanted = ctypes.byref(Properties(1, 0, 1, 0))
assert driver.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(256 << 20), wanted, 0) == 0
"""
    (workplace / "pages.py").write_text(script)
    assert predict(workplace / "pages.py", "--json").json["outside"]["peak_bytes"] == 256 << 20
