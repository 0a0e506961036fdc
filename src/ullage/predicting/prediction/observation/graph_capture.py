"""Observe when a script captures or replays CUDA graphs, and which replays count as training steps.

PyTorch's documentation recommends three warm-up iterations before a capture. A run must not stop before the capture,
because a graph needs its own memory. A replay counts as a training step if an optimizer stepped during the capture.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from ullage.base.foreign_files import read_regular
from ullage.gpu.tracing.source import is_users

_MOST_BYTES: Final = 1 << 24
_MENTIONS: Final = re.compile(r"\bCUDAGraph\b|\bcuda\.graphs?\b|\bmake_graphed_callables\b")


class GraphCapture:
    """Observe the captures and replays of CUDA graphs through hooks on `torch.cuda.CUDAGraph`."""

    def __init__(self, count_steps: Callable[[], int], end_step: Callable[[], None]) -> None:
        self.is_capturing = False
        self.captured = self.replays = 0
        self._count_steps = count_steps
        self._end_step = end_step
        self._steps_before = 0
        # The `id()` of each CUDA graph during whose capture a training step ended.
        self._with_steps: set[int] = set()

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Install hooks on the methods of `torch.cuda.CUDAGraph`."""
        wrap(torch.cuda.CUDAGraph, "capture_begin", self._around_begin)
        wrap(torch.cuda.CUDAGraph, "capture_end", self._around_end)
        wrap(torch.cuda.CUDAGraph, "replay", self._around_replay)

    @property
    def is_awaited(self) -> bool:
        """Whether the user's code mentions CUDA graphs but has not replayed one yet."""
        return not self.replays and any(_speaks_of_graphs(file) for file in _users_files())

    def _around_begin(self, original: Callable[..., Any], graph: Any, *arguments: Any, **keywords: Any) -> Any:
        self.is_capturing, self._steps_before = True, self._count_steps()
        self._with_steps.discard(id(graph))  # the id of a graph that the script has deleted
        return original(graph, *arguments, **keywords)

    def _around_end(self, original: Callable[..., Any], graph: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(graph, *arguments, **keywords)
        finally:
            self.is_capturing = False
            self.captured += 1
            if self._count_steps() > self._steps_before:
                self._with_steps.add(id(graph))

    def _around_replay(self, original: Callable[..., Any], graph: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(graph, *arguments, **keywords)
        self.replays += 1
        if id(graph) in self._with_steps:
            self._end_step()
        return result


def _users_files() -> list[str]:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str) and file.endswith(".py") and is_users(file)]


def _speaks_of_graphs(file: str) -> bool:
    try:
        return _MENTIONS.search(read_regular(Path(file), most_bytes=_MOST_BYTES).decode(errors="replace")) is not None
    except OSError:
        return False
