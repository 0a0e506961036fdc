"""Read the Python stacks in the journal, to find the line that requested memory.

The C part (`stacks.c`) reads the interpreter's frames in a fraction of a microsecond, without creating Python objects.
Frames have a different layout in every minor version of CPython. So, before the first use, the reader is checked on a
stack that Python itself describes.
"""

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import takewhile
from types import FrameType
from typing import Final

from ullage.gpu.tracing.source import Line, is_librarys, is_users

_COMPARED_FRAMES: Final = 20  # the number of frames that are compared in this check


# struct stacks_layout: the offsets of the fields in the interpreter's frames
class _FrameLayout(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("thread_frame", "cframe_frame"),
            *("frame_code", "frame_previous", "frame_instruction", "frame_owner", "first_inner_owner"),
            *("code_firstlineno", "code_filename", "code_qualname", "code_linetable"),
            *("code_first_traceable", "code_instructions"),
        )
    )


# struct stacks_node: one call in the tree of recorded stacks
class _StackNode(ctypes.Structure):
    _fields_ = (
        ("parent", ctypes.c_uint32),
        ("line", ctypes.c_int32),
        ("file", ctypes.c_char_p),
        ("function", ctypes.c_char_p),
    )


# Offsets in CPython's release builds for 64-bit Linux, computed with offsetof from the headers of each version:
# cpython/pystate.h (PyThreadState, _PyCFrame), internal/pycore_frame.h or pycore_interpframe_structs.h
# (_PyInterpreterFrame, enum _frameowner), cpython/code.h (PyCodeObject).
_LAYOUTS: Final = {
    (3, 11): _FrameLayout(56, 8, 32, 48, 56, 69, 3, 72, 112, 128, 136, 168, 184),
    (3, 12): _FrameLayout(56, 0, 0, 8, 56, 70, 3, 68, 112, 128, 136, 176, 192),
    (3, 13): _FrameLayout(72, -1, 0, 8, 56, 70, 3, 68, 112, 128, 136, 184, 200),
    (3, 14): _FrameLayout(72, -1, 0, 8, 56, 74, 3, 68, 112, 128, 136, 192, 208),
    (3, 15): _FrameLayout(72, -1, 0, 8, 56, 74, 3, 68, 112, 128, 136, 192, 208),
}


class JournalStacks:
    """Reads recorded Python stacks. Each stack has a number, which journal entries contain."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.stacks_here.restype = ctypes.c_uint32
        library.stacks_follow.restype = ctypes.c_bool
        library.stacks_follow.argtypes = [ctypes.POINTER(_FrameLayout)]
        library.stacks_read.restype = ctypes.c_bool
        library.stacks_read.argtypes = [ctypes.c_uint32, ctypes.POINTER(_StackNode)]
        self._library = library
        with_lock = ctypes.PyDLL(library._name)  # for calls that keep the GIL
        with_lock.stacks_watched.restype = ctypes.c_char_p
        self.watched: Callable[[], bytes] = with_lock.stacks_watched
        """Returns the Python stack of the watched thread without creating Python objects for its frames.

        Each line of the result has file, line and function, innermost first. The result is empty if stacks are not
        recorded.
        """
        self._users: dict[int, Line | None] = {0: None}

    @cached_property
    def are_recorded(self) -> bool:
        """Whether Python stacks are recorded. The first access starts the recording.

        The property is False if the Python version is not supported.
        """
        layout = _LAYOUTS.get(sys.version_info[:2])
        is_release = not (sysconfig.get_config_var("Py_DEBUG") or sysconfig.get_config_var("Py_GIL_DISABLED"))
        if layout is None or not is_release or sys.implementation.name != "cpython" or sys.maxsize < 2**32:
            return False
        if not self._library.stacks_follow(layout):
            return False
        if self._is_proved():
            return True
        self._library.stacks_stop()
        return False

    def watch(self) -> None:
        """Watch the calling thread. The function `watched` then returns its Python stack."""
        self._library.stacks_watch()

    def stack(self, node: int) -> list[Line]:
        """Return a recorded Python stack as source lines: at most 200, innermost first."""
        return list(self._lines(node))

    def _lines(self, node: int) -> Iterator[Line]:
        found = _StackNode()
        while self._library.stacks_read(node, found):
            yield _line(found)
            node = found.parent

    def users_line(self, node: int) -> Line | None:
        """Return the innermost line of user code on a recorded stack, or None."""
        path = []
        found = _StackNode()
        while node not in self._users:
            path.append(node)
            self._library.stacks_read(node, found)
            line = _line(found)
            if is_users(line.file):
                self._users[node] = line
                break
            node = found.parent
        self._users.update(dict.fromkeys(path, self._users[node]))
        return self._users[node]

    def librarys_line(self, node: int) -> Line | None:
        """Return the innermost line of a library other than torch on a recorded stack, or None.

        The search stops at the first line of user code.
        """
        before_users = takewhile(lambda line: not is_users(line.file), self._lines(node))
        return next((line for line in before_users if is_librarys(line.file)), None)

    def _is_proved(self) -> bool:
        def told_by_python() -> list[Line]:
            lines: list[Line] = []
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and len(lines) < _COMPARED_FRAMES:
                lines.append(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
                frame = frame.f_back
            return lines

        node, expected = self._library.stacks_here(), told_by_python()
        return bool(node) and self.stack(node)[:_COMPARED_FRAMES] == expected


def _line(node: _StackNode) -> Line:
    return Line(node.file.decode(errors="replace"), node.line, node.function.decode())
