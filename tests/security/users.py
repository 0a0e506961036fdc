"""A second user, for tests of what another one can do; only root can become one."""

import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534


def as_nobody(act: Callable[[], object]) -> None:
    """Do something as another user, in a process of its own, and wait for it; who is not root does it himself."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the other user could not do it"


def content_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a folder: what it is, whose, since when, and what it holds."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        known = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(known.st_mode) else b""
        found[str(path)] = (known.st_ino, known.st_mode, known.st_uid, known.st_mtime_ns, known.st_nlink, content)
    return found
