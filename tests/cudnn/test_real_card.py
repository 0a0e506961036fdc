"""What `make gpu` does on a machine with a card, tried on an emulated one: both of its sides have to agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cudnn.conftest import SLOW

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "real_card.py"
NET = "speech_stem:fp32:channels_first"


@pytest.mark.skipif(not SLOW, reason="20 seconds; ULLAGE_SLOW=1 runs it")
def test_what_a_card_takes_is_compared_operation_by_operation(with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """Each convolution alone, forward and backward, and the peaks; one byte more in the record is a difference."""
    record = tmp_path / "record.json"

    def run(*words: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(SCRIPT), *map(str, words)],
            env=os.environ | with_cudnn,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    measured = run("measure", record, "--emulate", "A100", "--only", NET)
    assert measured.returncode == 0, measured.stdout + measured.stderr
    compared = run("compare", record)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert f"equal {NET}" in compared.stdout
    data = json.loads(record.read_text())
    operations = data["nets"][NET]["operations"]
    assert len(operations) == 4  # the layers of the net
    (forward,) = [taken["forward"] for taken in operations.values() if taken["forward"]][:1]
    forward[0] += 512
    record.write_text(json.dumps(data))
    assert run("compare", record).returncode == 1
