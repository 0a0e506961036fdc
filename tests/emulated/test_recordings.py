"""What an explanation says of random recordings of real torch, against PyTorch's own figures (recordings.py)."""

import subprocess
import sys
from pathlib import Path

PROGRAMS, SEED = 8, 21
"""A few programs of one seed, the same at every run; `make fuzz` runs others."""


def test_state_peaks_and_failure_are_those_that_pytorch_counted() -> None:
    """Several cards, streams, pools, expandable segments that give pages back, recordings that begin late."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulated.recordings", "--programs", str(PROGRAMS), "--seed", str(SEED)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{PROGRAMS} recordings" in done.stdout


def test_a_difference_is_found() -> None:
    """The check can fail: what PyTorch is said to have reserved is a byte more."""
    code = (
        "import sys; from tests.emulated import recordings; right = recordings.facts_of; "
        "recordings.facts_of = lambda device: right(device) | {'reserved': right(device)['reserved'] + 1}; "
        "sys.argv = ['recordings', '--programs', '2', '--seed', '21']; sys.exit(recordings.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 1, done.stdout + done.stderr[-3000:]
    assert "differ; again:" in done.stdout
