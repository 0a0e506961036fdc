"""Copy a record into benchmarks/our_gpus/records/, compressed, to be committed: `make gpu-keep`.

python -m benchmarks.our_gpus.keep [FOLDER]      FOLDER: what `make gpu` wrote (build/our_gpus/record)
"""

import argparse
import gzip
import re
import sys
from datetime import date
from pathlib import Path

from .measure import DEFAULT_FOLDER
from .process import ROOT
from .record import ATTACHMENTS, RECORD, RecordError, read_record

RECORDS = ROOT / "benchmarks" / "our_gpus" / "records"


def keep(folder: Path, records: Path = RECORDS) -> Path:
    """Copy a record and return its new folder, named after the GPU, torch and the day.

    Raises:
        RecordError: the folder has no record, or one of an emulated GPU, or the new folder is there already.
    """
    record = read_record(folder)
    if record.gpu["emulated"]:
        raise RecordError(f"{folder}: this is the record of a dry run; only records of real GPUs are kept")
    words = f"{record.gpu['gpu']} torch {record.gpu['torch']} {date.today()}"
    target = records / re.sub(r"[^A-Za-z0-9.]+", "-", words)
    if target.exists():
        raise RecordError(f"{target}: is there already; remove it first if the new record is to replace it")
    target.mkdir(parents=True)
    for name in (RECORD, ATTACHMENTS):
        if (folder / name).is_file():
            (target / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes(), 9, mtime=0))
    return target


def main() -> int:
    """Copy, and say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    try:
        print(keep(parser.parse_args().folder))
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
