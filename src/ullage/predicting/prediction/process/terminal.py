"""A terminal that a script gets as its standard input, with the size of the user's terminal and an end of file."""

import fcntl
import os
import termios
from typing import Final

_ENDS_OF_FILE: Final = 1024
"""The number of reads that return an end of file. The buffer of a terminal has room for 4,095 characters (Linux)."""
_SIZE_BYTES: Final = 8
"""The size of `struct winsize` (rows, columns, and two unused numbers)."""


def open_empty_terminal(like: int) -> tuple[int, int]:
    """Open a new terminal whose input is empty: the user's terminal is never read.

    Programs such as `stty size` ask their standard input for the width of a progress bar, and fail if it is not a
    terminal.

    Args:
        like: the file descriptor of the terminal whose size the new one gets.

    Returns:
        The file descriptors of the terminal, and of its other end, which has to stay open while the terminal is used.

    Raises:
        OSError: the system has no further terminals.
    """
    other_end, terminal = os.openpty()
    try:
        attributes = termios.tcgetattr(terminal)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        os.write(other_end, attributes[6][termios.VEOF] * _ENDS_OF_FILE)
    except BaseException:
        os.close(terminal)
        os.close(other_end)
        raise
    return terminal, other_end
