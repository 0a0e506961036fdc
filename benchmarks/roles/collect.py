"""Run workloads on an emulated card: a snapshot of each, and the role of every block at its peak as predict knows it.

`python collect.py FOLDER [NAME ...]` writes NAME.pickle and NAME.json into the folder, where they are not there yet.
"""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ullage.predicting.prediction.predict import Request, predict

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "workloads.py"
CARD = "A100 80GB"


def collect(name: str, folder: Path, *, script: Path = SCRIPT) -> None:
    """Run one workload; the rows of its JSON are the address, bytes and role of each block at the peak."""
    snapshot, truth = folder / f"{name}.pickle", folder / f"{name}.json"
    if truth.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    request = Request.of(script, (name,), gpu=CARD, steps=3, snapshot=snapshot, picture=True)
    answer = predict(request)
    picture = answer.picture
    if picture is None or answer.snapshot_error:
        raise SystemExit(f"{name}: no snapshot was written: {answer.snapshot_error}")
    rows = [
        (segment["address"] + offset, size, role)
        for segment in picture.segments
        for offset, size, role in segment["blocks"]
    ]
    truth.write_text(json.dumps({"peak_bytes": answer.peak_allocated_bytes, "blocks": rows}))


def main(folder: str, names: Sequence[str]) -> None:
    failed = []
    for name in names:
        try:
            collect(name, Path(folder))
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:1500]}")
            print(failed[-1], flush=True)
        else:
            print(name, flush=True)
    sys.exit("\n".join(failed) or 0)


def all_names() -> list[str]:
    """The workloads' names, read from the file: importing it would need torch."""
    lines = SCRIPT.read_text().splitlines()
    return [
        after.removeprefix("def ").partition("(")[0]
        for before, after in itertools.pairwise(lines)
        if before == "@workload"
    ]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or all_names())
