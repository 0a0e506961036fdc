"""Two ranks under a framework, one of them short of memory (with ULLAGE_SLOW)."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="a minute and more")
@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_rank_that_splits_its_batches_changes_no_rank(framework: str, tmp_path: Path) -> None:
    """Both ranks end with the same parameters, which are those of a run without a guard in which all fits."""
    first, second = _ranks(framework, "guarded", tmp_path)
    bare, _ = _ranks(framework, "bare", tmp_path)
    assert first == second
    assert max(abs(a - b) for a, b in zip(first, bare, strict=True)) < 1e-6


def _ranks(framework: str, kind: str, folder: Path) -> list[list[float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = [folder / f"{kind}-{rank}" for rank in range(2)]
    ranks = []
    for rank, file in enumerate(files):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": 0,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "test",
            "OMP_NUM_THREADS": 1,
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.integrations.on_two_ranks", framework, kind, file],
                cwd=_ROOT,
                env=os.environ | {name: str(value) for name, value in variables.items()},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate(timeout=900)[1] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said[0][-2000:] + said[1][-2000:]
    return [[float(value) for value in file.read_text().split()] for file in files]
