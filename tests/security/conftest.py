"""A folder that every user of the machine can enter."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that others can enter, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="ullage-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
    assert not os.path.lexists(path)
