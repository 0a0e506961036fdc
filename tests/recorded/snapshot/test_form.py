"""Every form in which PyTorch has written snapshots since 2022 is read; what is not known yet is passed over.

The forms are those of the sources of PyTorch 1.13 to 2.15 (torch/csrc/cuda/Module.cpp, memory_snapshot.cpp) and of
torch.cuda.memory's documentation; the writers here make small ones of them.
"""

import gzip
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ullage.api.explain import explain
from ullage.recorded.history import Action, Annotation, Frame, History
from ullage.recorded.snapshot.snapshot import load_snapshot

MIB = 1 << 20
BASE = 0x7F0000000000
FRAMES = [{"filename": "/project/train.py", "line": 12, "name": "forward"}]


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size - 12, "state": state, "frames": FRAMES, **more}


def segment(address: int = BASE, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = blocks or (block(address, MIB), block(address + MIB, MIB, "inactive"))
    return {
        "device": 0,
        "address": address,
        "total_size": sum(part["size"] for part in found),
        "allocated_size": MIB,
        "active_size": MIB,
        "stream": 0,
        "segment_type": "small",
        "blocks": list(found),
        **more,
    }


def entry(action: str, address: int = BASE, size: int = MIB, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": FRAMES, **more}


def written(folder: Path, plain: Any, protocol: int = 4) -> dict[int, History]:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(plain, protocol))
    return dict(load_snapshot(path).devices)


def only(folder: Path, plain: Any) -> History:
    (history,) = written(folder, plain).values()
    return history


def test_a_list_of_segments(tmp_path: Path) -> None:
    """torch.cuda.memory_snapshot() returns the segments alone."""
    history = only(tmp_path, [segment()])
    assert (len(history), history.reserved_bytes) == (0, 2 * MIB)
    assert [part.state for part in history.segments[0].blocks] == ["active_allocated", "inactive"]


@pytest.mark.parametrize(
    "plain", [[], {"segments": []}, {"segments": [], "device_traces": [[], []]}, {"device_traces": []}]
)
def test_an_empty_one(tmp_path: Path, plain: Any) -> None:
    history = only(tmp_path, plain)
    assert (history.device, len(history), history.segments) == (0, 0, ())


def test_what_to_record_is_said_of_an_empty_one(tmp_path: Path) -> None:
    only(tmp_path, {"segments": [], "device_traces": [[]]})
    command = [sys.executable, "-m", "ullage", "explain", str(tmp_path / "snapshot.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch.cuda.memory._record_memory_history()" in done.stdout


def test_of_2022_with_histories_of_blocks(tmp_path: Path) -> None:
    """PyTorch 1.13: no addresses of blocks, and a block's history, newest first, instead of its stack."""
    blocks = [
        {"size": MIB, "state": "inactive"},
        {
            "size": MIB,
            "state": "active_allocated",
            "history": [
                {"addr": BASE + MIB, "real_size": MIB - 24, "frames": FRAMES, "cpp_frames": ["at::empty"]},
                {"addr": BASE + MIB, "real_size": 700, "frames": []},
            ],
        },
        {"size": 512, "state": "active_allocated", "history": [{"addr": 0, "real_size": 4}]},  # no stack recorded
    ]
    plain = [{"device": 0, "address": BASE, "total_size": 2 * MIB + 512, "segment_type": "large", "blocks": blocks}]
    history = only(tmp_path, plain)
    found = history.segments[0].blocks
    assert [part.address - BASE for part in found] == [0, MIB, 2 * MIB]
    assert [part.requested for part in found] == [MIB, MIB - 24, 4]
    assert [history.stacks.frames_of(part.stack) for part in found] == [
        (),
        (Frame("forward", "/project/train.py", 12),),
        (),
    ]
    assert history.segments[0].is_large


def test_without_times_and_stacks(tmp_path: Path) -> None:
    """PyTorch 2.0 and 2.1 wrote no time_us; `context=None` leaves the frames away."""
    bare = [{"action": name, "addr": BASE, "size": 512, "stream": 0} for name in ("alloc", "free_requested")]
    history = only(tmp_path, {"segments": [], "device_traces": [bare]})
    assert history.time_us.tolist() == [-1, -1]
    assert history.stack.tolist() == [-1, -1]
    assert history.action.tolist() == [Action.ALLOC, Action.FREE_REQUESTED]


def test_one_entry_for_a_free(tmp_path: Path) -> None:
    """Tools that make snapshots of other recordings write `free`: the memory is free from then on."""
    history = only(tmp_path, {"device_traces": [[entry("alloc"), entry("free")]]})
    assert history.action.tolist() == [Action.ALLOC, Action.FREE_COMPLETED]


def test_every_action(tmp_path: Path) -> None:
    """The room that is left stands where another entry has its address; what is not known is OTHER."""
    names = [action.name.lower() for action in Action if action not in (Action.OOM, Action.OTHER, Action.ANNOTATE)]
    oom = {"action": "oom", "device_free": 7 * MIB, "size": 1 << 62, "stream": 0, "frames": []}
    annotate = entry("annotate", user_metadata="packed", internal_metadata="mallocWithAddress")
    history = only(tmp_path, {"device_traces": [[*map(entry, names), oom, annotate, entry("to come", size=-1)]]})
    assert [Action(action).name.lower() for action in history.action] == [*names, "oom", "annotate", "other"]
    assert history.address[len(names)] == 7 * MIB
    assert history.size[len(names)] == 1 << 62


def test_windows_paths(tmp_path: Path) -> None:
    frame = {"filename": r"C:\Users\me\train é.py", "line": 3, "name": "<module>"}
    history = only(tmp_path, {"device_traces": [[entry("alloc", frames=[frame])]]})
    assert history.stacks.table == (Frame("<module>", r"C:\Users\me\train é.py", 3),)


def test_several_devices_with_gaps(tmp_path: Path) -> None:
    """A device has a history where it has segments or entries; each has its own."""
    plain = {
        "segments": [segment(device=3), segment(BASE + 2 * MIB, device=1), segment(BASE + 4 * MIB, device=3)],
        "device_traces": [
            [],
            [entry("alloc"), entry("alloc", BASE + MIB)],
            [],
            [],
            [{"action": "oom", "device_free": 0, "size": 1}],
        ],
    }
    found = written(tmp_path, plain)
    assert {device: (len(one), len(one.segments)) for device, one in found.items()} == {1: (2, 1), 3: (0, 2), 4: (1, 0)}
    assert [one.address for one in found[3].segments] == [BASE, BASE + 4 * MIB]


def test_entries_of_devices_that_are_mixed_in_the_file(tmp_path: Path) -> None:
    """An entry that was named earlier in the file belongs to the trace that names it."""
    first, second = entry("alloc", 1), entry("alloc", 2)
    plain = {"seen": [first, second], "device_traces": [[second, entry("alloc", 3), first]]}
    assert only(tmp_path, plain).address.tolist() == [2, 3, 1]


def test_expandable_segments_and_private_pools(tmp_path: Path) -> None:
    """A pool is known by a pair, of which a graph's has the first number and the user's the second."""
    plain = {
        "segments": [
            segment(is_expandable=True, segment_pool_id=(0, 0), segment_type="large"),
            segment(BASE + 2 * MIB, segment_pool_id=(5, 0)),
            segment(BASE + 4 * MIB, segment_pool_id=(0, 7), is_expandable=False),
            segment(BASE + 6 * MIB, segment_pool_id="to come"),
        ],
        "device_traces": [
            [entry("segment_map"), entry("alloc", pool_id=(0, 7)), entry("segment_unmap", pool_id=[5, 0])]
        ],
    }
    history = only(tmp_path, plain)
    assert [one.pool for one in history.segments] == [0, 5, 7, 0]
    assert [one.is_expandable for one in history.segments] == [True, False, False, False]
    assert history.action.tolist() == [Action.SEGMENT_MAP, Action.ALLOC, Action.SEGMENT_UNMAP]
    assert history.labels.pool.tolist() == [0, 7, 5]


def test_what_was_put_on_entries(tmp_path: Path) -> None:
    """The user's metadata and the compiled region; PyTorch writes "" and "N/A" where there is none."""
    trace = [
        entry("alloc", user_metadata="", compile_context="N/A"),
        entry("alloc", user_metadata="step 1", compile_context="N/A"),
        entry("alloc", user_metadata="step 1", compile_context="Torch-Compiled Region: 0/0"),
        entry("alloc", user_metadata={"to": "come"}),
    ]
    labels = only(tmp_path, {"device_traces": [trace]}).labels
    assert [labels.texts[n] if n >= 0 else None for n in labels.metadata] == [None, "step 1", "step 1", None]
    assert [labels.texts[n] if n >= 0 else None for n in labels.context] == [
        *(None, None, "Torch-Compiled Region: 0/0", None)
    ]
    assert len(labels.pool) == 0
    bare = only(tmp_path, {"device_traces": [trace[:1]]}).labels
    assert (len(bare.metadata), len(bare.context), bare.texts) == (0, 0, ())


def test_annotations_and_settings(tmp_path: Path) -> None:
    plain = {
        "segments": [],
        "device_traces": [[entry("alloc", time_us=5)]],
        "external_annotations": [
            {"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 4},
            {"stage": "END", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 9},
            {"stage": "START", "name": "elsewhere", "device": 1, "time_us": 4},
            {"to": "come"},
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "roundup_power2_divisions": {"1": 0}},
    }
    history = only(tmp_path, plain)
    assert history.annotations == tuple(
        Annotation(name="Optimizer.step#AdamW.step", stage=stage, time_us=time_us)
        for stage, time_us in (("START", 4), ("END", 9))
    )
    assert history.settings["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_fields_that_are_not_known(tmp_path: Path) -> None:
    """Of the file, a segment, a block, an entry, a frame: passed over, pinned host memory (2.14) too."""
    frame = {**FRAMES[0], "fx_node_op": "call_function", "fx_node_info": {"a": [1]}, "fx_original_trace": "model.py"}
    more: dict[str, Any] = {"to_come": [1, {"two": (3.5, None, True, b"bytes")}], "version": 7}
    plain = {
        "segments": [segment(BASE, block(BASE, MIB, **more), **more)],
        "device_traces": [[entry("alloc", **{**more, "frames": [frame], "forward_frames": FRAMES})]],
        "host_segments": [segment(4096)],
        "host_traces": [entry("alloc", 4096), entry("free_completed", 4096)],
        "categories": {1: "a", None: 2},
        **more,
    }
    history = only(tmp_path, plain)
    assert (len(history), len(history.segments)) == (1, 1)
    assert history.address.tolist() == [BASE]
    assert history.stacks.frames_of(int(history.stack[0])) == (Frame("forward", "/project/train.py", 12),)


def test_whole_numbers_of_every_width(tmp_path: Path) -> None:
    """Addresses above 2**47, streams that are handles, a request that makes no sense: 64 bits, signed or not."""
    numbers = [0, -1, 255, 256, 65535, 65536, 1 << 31, -(1 << 31), 1 << 47, (1 << 63) - 1, -(1 << 63), (1 << 64) - 512]
    for protocol in range(6):
        trace = [{"action": "to come", "addr": n, "size": n, "stream": n} for n in numbers]
        (history,) = written(tmp_path, {"device_traces": [trace]}, protocol).values()
        wrapped = [*numbers[:-1], -512]
        assert history.size.tolist() == history.stream.tolist() == history.address.tolist() == wrapped


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("depth", [1, 2, 300, 70_000])
def test_names_that_come_again(tmp_path: Path, protocol: int, depth: int) -> None:
    """Values are named again by one, two or four bytes, in frames of 64 KiB: every entry gets its own stack."""
    many = [[{"filename": f"f{n}.py", "line": n, "name": f"n{n}"}] for n in range(min(depth, 9000))]
    trace = [entry("alloc", address, frames=many[address % len(many)]) for address in range(depth)]
    (history,) = written(tmp_path, {"device_traces": [trace]}, protocol).values()
    last = depth - 1
    assert history.stacks.frames_of(int(history.stack[last]))[0].line == last % len(many)
    assert len(history.stacks.starts) == len(many) + 1


def test_gzipped_in_one_piece_or_more(tmp_path: Path) -> None:
    content = pickle.dumps({"segments": [segment()], "device_traces": [[entry("alloc")]]})
    path = tmp_path / "named as you like"
    path.write_bytes(gzip.compress(content[:99], mtime=0) + gzip.compress(content[99:], mtime=0))
    assert len(load_snapshot(path).devices[0]) == 1


# ---- as PyTorch's C++ writes it: protocol 2, every text and shared list kept under the next number


class CppWriter:
    """The opcodes of torch::jit::Pickler for plain data: what torch::cuda::_memory_snapshot_pickled() returns."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._shared: dict[int, int] = {}
        self._kept = 0

    def file(self, value: Any) -> bytes:
        return b"\x80\x02" + self._of(value) + b"."

    def _keep(self) -> bytes:
        number = self._kept
        self._kept += 1
        return struct.pack("<cB", b"q", number) if number < 256 else struct.pack("<cI", b"r", number)

    def _again(self, number: int) -> bytes:
        return struct.pack("<cB", b"h", number) if number < 256 else struct.pack("<cI", b"j", number)

    def _of(self, value: Any) -> bytes:
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            small = -(1 << 31) <= value < 1 << 31
            return struct.pack("<ci", b"J", value) if small else b"\x8a\x08" + struct.pack("<q", value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            if value in self._texts:
                return self._again(self._texts[value])
            text = value.encode()
            self._texts[value] = self._kept
            return b"X" + struct.pack("<I", len(text)) + text + self._keep()
        if id(value) in self._shared:
            return self._again(self._shared[id(value)])
        if isinstance(value, tuple):
            return self._of(value[0]) + self._of(value[1]) + b"\x86"
        if isinstance(value, dict):
            content = b"}(" + b"".join(self._of(part) for item in value.items() for part in item) + b"u"
        else:
            content = b"](" + b"".join(map(self._of, value)) + b"e"
        self._shared[id(value)] = self._kept
        return content + self._keep()


def test_as_the_cpp_half_of_pytorch_writes_it(tmp_path: Path) -> None:
    """Keys in another order, frames last, empty lists filled from a mark, numbers of four bytes."""
    trace = [
        {"action": "alloc", "addr": BASE + n, "size": MIB, "stream": 0, "time_us": 1 << 50, "frames": FRAMES}
        for n in range(300)
    ]
    plain = {
        "segments": [segment(segment_pool_id=(0, 0), is_expandable=False, requested_size=9, frames=[])],
        "device_traces": [trace, []],
        "allocator_settings": {"garbage_collection_threshold": 0.5, "expandable_segments": False},
    }
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(CppWriter().file(plain))
    assert pickle.loads(path.read_bytes()) == plain, "the writer writes pickles"
    (history,) = load_snapshot(path).devices.values()
    assert history.address.tolist() == [BASE + n for n in range(300)]
    assert set(history.stack.tolist()) == {0}
    assert history.settings == plain["allocator_settings"]


@pytest.mark.parametrize("said", [0, 5, -2, 1 << 40, True, {"name": "f", "filename": "a.py", "line": 1}])
def test_a_block_whose_frames_are_no_list_has_no_stack(tmp_path: Path, said: Any) -> None:
    """A number that a file says is no stack of another block, however small it is."""
    blocks = (block(BASE, MIB, frames=said), block(BASE + MIB, MIB))
    history = only(tmp_path, {"segments": [segment(BASE, *blocks)], "device_traces": [[entry("alloc")]]})
    assert [part.stack for part in history.segments[0].blocks] == [-1, 0]


@pytest.mark.parametrize("name", ["step", "zero_grad", "backward", "forward"])
def test_a_frame_that_no_stack_has_is_passed_over(tmp_path: Path, name: str) -> None:
    """Such as one of an optimizer's step, by which steps are known."""
    alone = {"filename": "/packages/torch/optim/adamw.py", "line": 3, "name": name}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[entry("alloc", frames=[])]], "more": alone}))
    assert explain(path).device == 0
