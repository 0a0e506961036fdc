"""Run Python in a fresh process: a process emulates for its whole life, so every test needs one of its own."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any


def run(code: str, *, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python and return the finished process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
        timeout=300,
    )


def answer(code: str, *, environment: dict[str, str] | None = None) -> Any:
    """Run a piece of Python that ends with `tell(value)` and return the value."""
    prologue = "import json\ndef tell(value): print('\\n@' + json.dumps(value))\n"
    done = run(prologue + textwrap.dedent(code), environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rsplit("\n@", 1)[1])
