"""Copy a record into benchmarks/our_gpus/records/, compressed, to be committed: `make gpu-keep`.

python -m benchmarks.our_gpus.keep [FOLDER]      FOLDER: what `make gpu` wrote (build/our_gpus/record)
"""

import argparse
import gzip
import re
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path

from .measure import DEFAULT_FOLDER, in_one_sentence
from .process import ROOT
from .record import ATTACHMENTS, RECORD, RecordError, read_record

RECORDS = ROOT / "benchmarks" / "our_gpus" / "records"


def keep(folder: Path, records: Path = RECORDS) -> Path:
    """Copy a record and return its new folder, named after the GPU, torch and the day.

    Raises:
        RecordError: the folder has no record, or one of an emulated GPU, or the new folder is there already.
    """
    record = read_record(folder)
    folder = folder if folder.is_dir() else folder.parent
    if record.gpu["emulated"] or "emulated" in record.gpu["driver"]:
        raise RecordError(f"{folder}: this is the record of a dry run; only records of real GPUs are kept")
    words = f"{record.gpu['gpu']} torch {record.gpu['torch']} {date.today()}"
    target = records / re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")
    if target.exists():
        raise RecordError(f"{target}: is there already; remove it first if the new record is to replace it")
    records.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=records, prefix=".new-"))
    try:
        for name in (RECORD, ATTACHMENTS):
            packed = new / f"{name}.gz"
            if (folder / name).is_file():
                packed.write_bytes(gzip.compress((folder / name).read_bytes(), 9, mtime=0))
            elif (folder / packed.name).is_file():
                packed.write_bytes((folder / packed.name).read_bytes())
        new.chmod(0o755)
        new.rename(target)  # whole, or not at all
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return target


def main() -> int:
    """Copy, and say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    folder = parser.parse_args().folder

    def work() -> int:
        print(keep(folder))
        return 0

    return in_one_sentence(work)


if __name__ == "__main__":
    sys.exit(main())
