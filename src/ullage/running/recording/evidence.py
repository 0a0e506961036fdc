"""Saves the memory snapshot, the stack and the environment when GPU memory runs out.

This allocates no GPU memory. An error here does not affect the user's script.
"""

import json
import os
import pickle
import platform
import sys
import threading
from time import time
from types import FrameType
from typing import Any, Final

import torch

from ullage.base.own_files import OwnFolder
from ullage.base.secrets import hidden_data, told_environment, without_secrets
from ullage.recorded.frame import Frame, short_line, users_frame
from ullage.running.run_files.folder import ENVIRONMENT, SNAPSHOT

_MOST_FRAMES: Final = 200


def write_evidence(folder: OwnFolder, *, device: int, asked_bytes: int, more: dict[str, Any]) -> None:
    """Save the memory snapshot, the stack and the environment in a folder.

    Args:
        folder: a new, empty folder.
        device: the device that ran out of memory.
        asked_bytes: the size of the request in bytes, rounded up as the allocator does.
        more: facts about the run, as JSON data.

    Raises:
        OSError: a file cannot be written; files that are already complete stay readable.
    """
    frames = _frames(sys._getframe(1))
    caller = frames
    # A thread may have no stack frames of the user's script, such as the backward thread.
    if _users_line(frames) is None:
        caller = _frames(sys._current_frames().get(threading.main_thread().ident or 0))
    surroundings = more | {
        "device": device,
        "asked_bytes": asked_bytes,
        "time": time(),
        "line": _users_line(caller),
        "is_in_backward": caller is not frames,
        "stack": [{"file": file, "line": line, "name": name} for file, line, name in caller],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "command": without_secrets(sys.orig_argv),
        "variables": told_environment(os.environ),
    }
    surroundings = hidden_data(surroundings)
    folder.write_whole(ENVIRONMENT, json.dumps(surroundings, indent=1, default=str).encode())
    snapshot = torch._C._cuda_memorySnapshot(None)
    _append_oom_event(snapshot, device, asked_bytes, more.get("driver_free_bytes"), frames)
    _write_snapshot(folder, snapshot)


def _users_line(frames: list[tuple[str, int, str]]) -> str | None:
    frame = users_frame([Frame(name, file, line, is_script=True) for file, line, name in frames])
    return short_line(frame) if frame is not None else None


def _write_snapshot(folder: OwnFolder, snapshot: dict[str, Any]) -> None:
    # pickled directly into the file, so that host memory does not hold a large history twice
    with folder.whole_file(SNAPSHOT) as file:
        pickle.Pickler(file).dump(snapshot)


def _append_oom_event(snapshot: dict[str, Any], device: int, asked_bytes: int, free_bytes: Any, frames: Any) -> None:
    # PyTorch itself appends this event only while it records history
    trace = snapshot["device_traces"][device]
    if trace and trace[-1]["action"] == "oom":
        return
    trace.append(
        {
            "action": "oom",
            "device_free": free_bytes,
            "size": asked_bytes,
            "stream": 0,
            "time_us": int(time() * 1e6),
            "frames": [{"filename": file, "line": line, "name": name} for file, line, name in frames],
        }
    )


def _frames(frame: FrameType | None) -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        module = frame.f_globals.get("__name__")
        if not (isinstance(module, str) and module.startswith("ullage.running.recording")):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found
