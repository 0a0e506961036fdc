"""The core against the installed torch's own allocator, on random operations with new seeds at every run (twin.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import client

ROOT = Path(__file__).parents[3]
TWIN = ("-m", "tests.recorded.allocator.twin")
PROGRAMS, OPERATIONS = 6, 250

# The core is told of larger segments than torch is.
WRONG = """
import sys
from tests.recorded.allocator import twin
right = twin.parse_settings
twin.parse_settings = lambda text, **more: right("large_segment_size_mb:50", semantics=twin.SEMANTICS)
sys.exit(twin.main())
"""


def run(*command: object, placement: str = "linux") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *(str(word) for word in command)]
    return client.run(words, cwd=ROOT, env=os.environ | client.USUAL | {"TWIN_PLACEMENT": placement})


@pytest.mark.parametrize("placement", ["linux", "windows"])
def test_whatever_is_done_both_have_the_same_blocks_and_statistics(placement: str) -> None:
    """After every operation: segments with all blocks, statistics, peaks, retries, calls of the driver, errors."""
    done = run(*TWIN, "--programs", PROGRAMS, "--operations", OPERATIONS, placement=placement)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{PROGRAMS} programs" in done.stdout


def test_a_difference_is_found_and_its_seed_told() -> None:
    done = run("-c", WRONG, "--programs", 5, "--operations", 100, "--seed", 7)
    assert done.returncode == 1, done.stdout + done.stderr[-3000:]
    assert "torch " in done.stdout
    assert "the core " in done.stdout
    assert "--programs 1 --operations 100" in done.stdout
