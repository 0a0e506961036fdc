"""One process of a campaign: `python -m tests.fuzzing.batch READER SEED START COUNT JOURNAL`."""

import sys
from pathlib import Path

from tests.fuzzing.campaign import environment_is_clean, read_batch

if __name__ == "__main__":
    environment_is_clean()
    read_batch(sys.argv[1], *(int(text) for text in sys.argv[2:5]), Path(sys.argv[5]))
