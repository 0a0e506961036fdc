"""Which frames of a recorded stack are the user's."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ullage.explaining.analysis.explain import explain
from ullage.explaining.difference.difference import Moment, difference_of
from ullage.recorded.frame import Frame, users_frame, users_frames
from ullage.recorded.snapshot.snapshot import load_snapshot

MIB = 1 << 20
# The paths of the objects that contain C++ frames, by TORCH_SYMBOLIZE_MODE=dladdr. Most are interpreters, linked
# statically or as a library.
OBJECTS = (
    "/usr/local/lib/libpython3.11.so.1.0",
    "/usr/lib/x86_64-linux-gnu/libpython3.12.so",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
    "/lib64/ld-linux-x86-64.so.2",
    "/usr/bin/python3.12",
    "/usr/bin/python3",
    "/usr/bin/python",
    "/home/user/miniconda3/envs/train/bin/python3.11",
    "/opt/conda/bin/python",
    "/root/.pyenv/versions/3.11.7/bin/python3.11",
    "/home/user/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12",
    "/home/user/project/.venv/bin/python",
    "/nix/store/8w718rm43x7z73xhw9d6vh8s4snrq67h-python3-3.12.5/bin/python3.12",
    "/usr/bin/pypy3",
    "/tmp/.mount_appABC/AppRun",
    "/home/user/project/dist/train",
    "/home/user/project/train.bin",
    "/home/user/project/build/ext.cpython-311-x86_64-linux-gnu.so",
    "/home/user/project/py/kernels.so.2",
    "/home/user/.ipykernel/lib/libkernel.so.1.0",
    r"C:\Program Files\Python312\python.exe",
    r"C:\Python312\python312.dll",
    r"C:\project\ext.pyd",
    "libfoo.dylib",
    "[vdso]",
    "linux-vdso.so.1",
    "??",
    "",
    # By addr2line
    "/tmp/python-build/Python-3.11.7/Python/ceval.c",
    "/home/user/project/csrc/kernel.hpp",
    "/home/user/project/csrc/kernel.cxx",
    "/home/user/project/csrc/lib.rs",
    "/home/user/project/fast.pyx",
    "./csu/../sysdeps/x86/libc-start.c",
)
PYTHON = (
    "/home/user/train.py",
    "train.py",
    "/home/user/TRAIN.PY",
    "/home/user/gui.pyw",
    "/home/user/libpython3.11.so.1.0/train.py",
    r"C:\Users\me\train.py",
    "/tmp/ipykernel_17/3456789.py",
    "/root/.ipykernel/1533/command-3456-7890",
    "<ipython-input-3-0a1b2c>",
    "<stdin>",
    "<python-input-12>",
    "<command-1234567>",
    "<doctest readme[3]>",
    "Cell [3]",
    "/tmp/marimo_123/__marimo__cell_Hbol_.py",
)
LIBRARIES = (
    "/usr/lib/python3.12/threading.py",
    "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py",
    "/usr/lib/python3/dist-packages/numpy/core.py",
    r"C:\Python312\Lib\runpy.py",
    "<frozen runpy>",
    "<frozen importlib._bootstrap>",
)
GENERATED = (
    "<eval_with_key>.12",
    "<eval_with_key>.12 from <eval_with_key>.11:5 in forward",
    "<lambdifygenerated-1>",
    "/tmp/torchinductor_me/l4/cl4iffgos7ugqv5pm3rgsk6mjghzyd2xr7wkqzqa6y2n3kxsm5zp.py",
)
CXX = ("??", "_start", "Py_BytesMain", "_PyEval_EvalFrameDefault", "at::_ops::empty_strided::call(long)", "main")


@pytest.mark.parametrize("file", OBJECTS)
def test_an_object_is_never_the_users(file: str) -> None:
    for name in CXX:
        frame = Frame(name, file, 1_733_425)
        assert not frame.is_python
        assert not frame.is_users
        assert users_frame([frame]) is None


@pytest.mark.parametrize("file", PYTHON)
def test_python_that_a_person_wrote_is_the_users(file: str) -> None:
    frame = Frame("f", file, 3)
    assert frame.is_python
    assert frame.is_users
    assert users_frame([Frame("??", OBJECTS[0], 1), frame]) == frame


@pytest.mark.parametrize("file", [*LIBRARIES, *GENERATED])
def test_libraries_and_generated_python_are_not_the_users(file: str) -> None:
    frame = Frame("f", file, 3)
    assert frame.is_python
    assert users_frame([frame]) is None
    assert frame.is_generated is (file in GENERATED)


def test_a_text_that_was_executed_counts_only_without_a_file_of_the_user() -> None:
    text, file = Frame("__init__", "<string>", 3), Frame("main", "/home/user/train.py", 7)
    assert list(users_frames([text, file])) == [file]
    assert list(users_frames([text, Frame("_start", "/usr/bin/python3.12", 4224)])) == [text]


def test_a_script_without_a_suffix_is_known_by_its_top_level(tmp_path: Path) -> None:
    """`./train` is a Python file, and `/usr/bin/python3.12` is not; their names do not show this."""
    program = [("_PyEval_EvalFrameDefault", "/usr/bin/python3.12", 1_038_786)]
    stack = [*program, ("make", "/home/user/train", 5), *program, ("<module>", "/home/user/train", 9)]
    history = load_snapshot(_snapshot(tmp_path / "a.pickle", [stack])).devices[0]
    assert [str(frame.line) for frame in users_frames(history.stacks.frames_of(0))] == ["5", "9"]
    assert [holder.line for holder in explain(history).holders] == ["user/train:5"]


@pytest.mark.parametrize("file", OBJECTS)
def test_no_report_names_an_object_as_a_line(tmp_path: Path, file: str) -> None:
    inner = [("??", file, 1_731_810), ("PyObject_Vectorcall", file, 1_412_002)]
    outer = [("_PyEval_EvalFrameDefault", file, 1_038_786), ("_start", file, 4_224)]
    stacks = [[*inner, ("main", "/home/user/train.py", line), *outer] for line in (3, 4)]
    path = _snapshot(tmp_path / "a.pickle", [*stacks, [*inner, *outer]])
    explanation = explain(load_snapshot(path).devices[0], with_picture=True)
    assert {holder.line for holder in explanation.holders} == {
        "user/train.py:3",
        "user/train.py:4",
        "(no line of yours)",
    }
    picture = explanation.picture
    assert picture is not None
    shown = zip(picture.blocks.stacks.texts, picture.blocks.stacks.is_own, strict=True)
    assert {text for text, is_own in shown if is_own} == {
        "/home/user/train.py:3 main",
        "/home/user/train.py:4 main",
    }
    runs = [load_snapshot(each).devices.values() for each in (path, _snapshot(tmp_path / "b.pickle", stacks))]
    lines = difference_of(*map(list, runs), moment=Moment.PEAK).lines
    assert {line.name for line in lines} == {"user/train.py:3", "user/train.py:4", "(no line of yours)"}


def _snapshot(path: Path, stacks: list[list[tuple[str, str, int]]]) -> Path:
    trace: list[dict[str, Any]] = []
    for number, stack in enumerate(stacks):
        frames = [{"name": name, "filename": file, "line": line} for name, file, line in stack]
        for action in ("segment_alloc", "alloc"):
            entry = {"action": action, "addr": (number + 1) << 25, "size": 20 * MIB, "stream": 0, "time_us": number}
            trace.append({**entry, "frames": frames})
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    return path
