"""The class `Frame`, a frame of a recorded call stack, and the rule that decides which frames are the user's.

A recorded stack can contain C++ frames. With `TORCH_SYMBOLIZE_MODE=dladdr`, the default of torch 2.15, such a frame has
the path of a shared object or of a program as its file, and a byte offset as its line number
(torch/csrc/profiler/combined_traceback.cpp). The Python interpreter is one of these programs, and its path usually has
no suffix. Therefore only Python code can be the user's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.source_location import is_library, is_python, is_text, short_place

TOP_LEVEL: Final = "<module>"
"""Python's name for the code at the top level of a file. A C++ frame cannot have this name."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python or C++ stack."""

    name: str
    file: str
    line: int
    """The line number of a Python frame. For a C++ frame, it may be a byte offset."""
    is_script: bool = False
    """Whether the file is known to be a Python script, because it has a frame of its top level. Its name may lack a
    suffix.
    """

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Frame":
        """Return a frame from PyTorch's form, a dictionary with `name`, `filename` and `line`."""
        return cls(found["name"], found["filename"], found["line"], found["name"] == TOP_LEVEL)

    @property
    def is_python(self) -> bool:
        """Whether this is a frame of Python code, not of C++ code."""
        return self.is_script or is_python(self.file)

    @property
    def is_users(self) -> bool:
        """Whether this is a frame of a Python file or notebook cell of the user."""
        return self.is_python and not is_library(self.file)

    @property
    def is_generated(self) -> bool:
        """Whether this is a frame of Python code that a program generated, such as torch.compile or torch.fx."""
        if not self.is_python or self.is_users or self.file.startswith("<frozen "):
            return False
        return self.file.startswith("<") or "torchinductor_" in self.file


def users_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the stack frames of user code, innermost first. Frames of libraries and of C++ are left out.

    Code that was passed as text, such as with `python -c`, counts only if the stack has no frame of a user's file,
    because libraries execute texts too.
    """
    own = [frame for frame in frames if frame.is_users]
    return own or [frame for frame in frames if is_text(frame.file)]


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost stack frame of user code, or None."""
    own = next((frame for frame in frames if frame.is_users), None)
    return own or next((frame for frame in frames if is_text(frame.file)), None)


def short_line(frame: Frame) -> str:
    """Return the file and line of a stack frame as text. The path is shortened to its last two parts."""
    return short_place(frame.file, frame.line)
