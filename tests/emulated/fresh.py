"""Run Python in a fresh process: a process emulates for its whole life, so every test needs one of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_FOLDERS = (str(Path(__file__).parent.parent / "compiler_later"), os.environ.get("PYTHONPATH", ""))
COMPILER_LATER = {"PYTHONPATH": os.pathsep.join(filter(None, _FOLDERS))}
"""Variables with which a process imports torch's compiler when it is used (tests/compiler_later)."""
USUAL = {} if "ULLAGE_SLOW" in os.environ else COMPILER_LATER
"""Variables of most processes of the tests."""


def run(code: str, *, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python and return the finished process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | USUAL | (environment or {}),
        timeout=300,
    )


def answer(code: str, *, environment: dict[str, str] | None = None) -> Any:
    """Run a piece of Python that ends with `tell(value)` and return the value."""
    prologue = "import json\ndef tell(value): print('\\n@' + json.dumps(value))\n"
    done = run(prologue + textwrap.dedent(code), environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rsplit("\n@", 1)[1])
