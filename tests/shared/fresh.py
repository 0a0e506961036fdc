"""Run Python in a process of its own: a process emulates for its whole life, so every test needs one."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from tests.forked import client
from tests.forked.client import COMPILER_LATER, USUAL

__all__ = ["COMPILER_LATER", "USUAL", "answer", "run"]


def run(
    code: str, *, environment: dict[str, str] | None = None, is_forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python and return the finished process."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return client.run(command, env=os.environ | USUAL | (environment or {}), is_forked=is_forked)


def answer(code: str, *, environment: dict[str, str] | None = None, is_forked: bool = True) -> Any:
    """Run a piece of Python that ends with `tell(value)` and return the value."""
    prologue = "import json\ndef tell(value): print('\\n@' + json.dumps(value))\n"
    done = run(prologue + textwrap.dedent(code), environment=environment, is_forked=is_forked)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rsplit("\n@", 1)[1])
