"""Real torch on the emulated card: its own bytes, errors and order."""

import ctypes
import importlib.util
import inspect
from pathlib import Path

import pytest

from tests.shared.fresh import answer, run
from tests.shared.inside import inside
from ullage.gpu.emulator import library

GIB = 1 << 30
START = "import ullage; ullage.emulate({card!r}{more}); import torch\n"


def emulated(code: str, card: str = "RTX 4090", more: str = "", **environment: str) -> object:
    return answer(START.format(card=card, more=more) + code, environment=environment)


def test_out_of_memory_is_pytorchs_own_error_and_names_the_card() -> None:
    text, free, total, reserved = emulated(
        """
x = torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    text = str(error)
tell([text, *torch.cuda.mem_get_info(), torch.cuda.memory_reserved()])
""",
        more=", context_bytes=512 << 20",
    )
    assert "Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 23.65 GiB" in text
    assert "this process has 20.50 GiB memory in use" in text
    assert reserved == 20 * GIB
    assert total - free == 20 * GIB + (512 << 20)


def test_expandable_segments_map_pages_and_give_them_back() -> None:
    expandable, grown, after = emulated(
        """
tensors = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
segments = torch.cuda.memory_snapshot()
grown = torch.cuda.memory_reserved()
del tensors
torch.cuda.empty_cache()
tell([[s["is_expandable"] for s in segments], grown, torch.cuda.memory_reserved()])
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert expandable == [True]
    assert 300 << 20 <= grown <= 320 << 20
    assert after == 0


@inside
def test_streams_events_pinned_memory_and_graphs_work_as_on_a_card() -> None:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(1 << 20, device="cuda")
    x.record_stream(torch.cuda.current_stream())
    del x
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    layer, static = torch.nn.Linear(256, 256).cuda(), torch.zeros(256, 256, device="cuda")
    assert torch.randn(1000).pin_memory().is_pinned()
    assert not static.is_pinned()
    with torch.cuda.stream(stream):
        layer(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(static)
    graph.replay()
    assert out.shape == (256, 256)


def test_several_cards_have_memory_of_their_own() -> None:
    count, first, second = emulated(
        """
model = torch.nn.DataParallel(torch.nn.Linear(4096, 4096)).cuda()
model(torch.randn(64, 4096, device="cuda")).sum().backward()
tell([torch.cuda.device_count(), *(torch.cuda.max_memory_allocated(d) for d in range(2))])
""",
        more=", count=2",
    )
    assert count == 2
    assert first > second > 64 << 20


@inside
def test_values_read_back_follow_from_what_the_host_sent() -> None:
    import torch

    x = torch.ones(1000, device="cuda")
    small = torch.tensor([1, 2, 3], device="cuda")
    assert small.tolist() == [1, 2, 3]
    address = small.data_ptr()
    del small
    again = torch.empty(3, dtype=torch.long, device="cuda")
    assert again.data_ptr() == address
    assert again.tolist() == [0, 0, 0]  # it is not what its block held for another
    assert x.sum().item() == x.cpu().abs().sum().item() == 1000
    assert (x > 0).all().item()
    assert not torch.isnan(x).any().item()
    assert x.nonzero().shape == (1000, 1)


@inside
def test_all_and_any_are_what_they_are_of_one_element_too() -> None:
    import torch

    one, host = torch.zeros(1, dtype=torch.long, device="cuda"), torch.tensor([False]).cuda()
    mask = one == 0
    assert [each.item() for each in (mask.all(), mask.view(1, 1).all(-1), mask[0].all())] == [True] * 3
    assert torch.all(mask, dim=(0,)).item()
    number = torch.isnan(torch.ones(1, device="cuda"))
    assert [each.item() for each in (mask.any(), mask[0], mask.clone(), number.any())] == [True, True, True, False]
    assert [each.item() for each in (host.all(), host.any(), (~host).all())] == [False, False, True]
    ones = torch.tensor([[1, 1, 0]]).cuda()
    assert [bool(each) for each in (ones.all(), ones.any(), (ones == 1).all(), (ones == 0).any())] == [
        *(False, True, False, True)
    ]


@inside
def test_the_largest_of_whole_numbers_is_what_it_is() -> None:
    import torch

    lengths = torch.tensor([5, -3, 1 << 40, 7]).to("cuda")
    assert [part.max().item() for part in (lengths, lengths[2:], lengths[:2])] == [1 << 40, 1 << 40, 5]
    assert [torch.arange(count).cuda().max().item() for count in (4096, 60000)] == [4095, 59999]
    assert torch.tensor([-4]).cuda().max().item() == -4
    assert torch.tensor([[1, 9], [8, 2]]).cuda().max(dim=1).values.tolist() == [9, 8]
    assert (lengths * 2).max().item() == 1 << 41


@inside
def test_a_function_that_nobody_wrote_is_refused_and_named() -> None:
    assert ctypes.CDLL("libcufile.so.0").cuFileRead() != 0
    assert library.unwritten_functions() == {"cufile:cuFileRead": 1}


@inside
def test_every_optimizer_steps_and_nothing_is_unwritten() -> None:
    from torch import Tensor, nn, optim, randn

    used = []
    for name, kind in inspect.getmembers(optim, inspect.isclass):
        if not issubclass(kind, optim.Optimizer) or kind in (optim.Optimizer, optim.SparseAdam):
            continue
        layer = nn.Linear(64, 64, bias=name != "Muon").cuda()
        optimizer = kind(layer.parameters())

        def closure(layer: nn.Module = layer, optimizer: optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = layer(randn(8, 64, device="cuda")).square().mean()
            loss.backward()
            return loss.detach()  # torch 2.8 warns of what LBFGS does with another

        optimizer.step(closure)
        used.append(name)
    assert {"SGD", "Adam", "AdamW", "Adafactor", "LBFGS", "RMSprop"} <= set(used)
    assert library.unwritten_functions() == {}


@inside
def test_nvidias_own_libraries_stay_out_though_they_are_installed() -> None:
    """The test environment has NVIDIA's runtime wheel; torch binds to the emulated one all the same."""
    import torch

    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None, "the environment lacks nvidia-cuda-runtime, see tools/environment.sh"
    (wheel,) = list(spec.submodule_search_locations or ())
    assert list(Path(wheel).rglob("libcudart.so*"))
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    assert [name for name in names if "/nvidia/" in name] == []
    versions = [Path(name).parent.name for name in names if "libullage_cudart" in name]
    assert torch.version.cuda.split(".")[0] in versions
    assert sorted(versions) == ["12", "13"]  # packages for the other version find theirs, too


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys, ullage; sys.modules['torch'] = sys; ullage.emulate('T4')", "torch is imported already"),
        ("import ullage; ullage.emulate('T4'); ullage.emulate('H100')", "emulates 1 x Tesla T4 already"),
        ("import ullage; ullage.emulate('T4', count=0)", "count=0 is out of range; expected 1 to 16"),
        ("import ullage; ullage.emulate('T4', total_memory_bytes=1 << 20)", "has no memory left with a CUDA context"),
        ("import ullage; ullage.emulate('T4', context_bytes=-1)", "a size is negative"),
        ("import ullage; ullage.emulate('RTX 4900')", "no GPU named 'RTX 4900' is known; nearest: RTX 4090"),
    ],
)
def test_a_request_that_cannot_be_says_why(code: str, text: str) -> None:
    done = run(code)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]


def test_the_same_card_twice_is_no_error() -> None:
    assert answer("import ullage; ullage.emulate('T4'); ullage.emulate('T4'); tell(True)")


@pytest.mark.parametrize(
    ("version_file", "text"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "2.13.0+cpu) is built without CUDA"),
        ("__version__ = '1.9'\ncuda = '10.2'\n", "is built for CUDA 10.2; only CUDA 12 and 13 can be emulated"),
    ],
)
def test_a_torch_without_cuda_is_answered_by_an_install_line(tmp_path: Path, version_file: str, text: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('never imported')")
    (tmp_path / "torch" / "version.py").write_text(version_file)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ullage; ullage.emulate('T4')"
    last = run(code).stderr.splitlines()[-1]
    assert text in last
    assert "pip install" in last
