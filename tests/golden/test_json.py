"""The fields of every command's JSON: none is lost and none changes its type without another schema number.

tests/golden/json/NAME.txt lists the fields with their types, the number of the schema first. To add a new field, run
`ULLAGE_GOLDEN=write python -m pytest tests/golden/test_json.py`. If a field is removed or changes its type, also
increase `SCHEMA` in its module.
"""

import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.commands import SCRIPTS, command, environment_of

GOLDEN = Path(__file__).parent / "json"
SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
TRAIN = SCRIPTS / "train.py"
OOM = SNAPSHOTS / "variable_length_oom.pickle.gz"
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB "
    "of which 1.10 GiB is free. Process 7 has 13.60 GiB memory in use. Of the allocated memory 12.90 GiB is allocated "
    "by PyTorch, and 560.00 MiB is reserved by PyTorch but unallocated."
)
EPOCH = """
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
items = [torch.ones(length, 64) for length in range(1, 41)]
for batch in torch.utils.data.DataLoader(items, batch_size=4, collate_fn=torch.cat):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COMMANDS: dict[str, list[Any]] = {
    "predict_fits": ["predict", "--gpu", "T4", "--steps", "2", "--json", TRAIN],
    "predict_out_of_memory": ["predict", "--gpu", "T4", "--json", SCRIPTS / "memory_runs_out.py", "uncaught"],
    "predict_an_epoch": ["predict", "--gpu", "T4", "--json", "--batches", "heaviest", "epoch.py"],
    "predict_every_rank": ["predict", "--gpu", "T4", "--json", "--world-size", "2", "--rank", "all", TRAIN],
    "fit": ["fit", "--gpu", "T4", "--json", "--steps", "2", "--no-changes", TRAIN, "--vary", "--batch-size=2..4"],
    "advise": [
        *("advise", "--gpu", "600MiB", "--arch", "sm_80", "--context", "100MiB", "--steps", "2", "--json"),
        *(TRAIN, "--width", "65536", "--batch-size", "1024"),
    ],
    "explain_a_snapshot": ["explain", "--json", OOM],
    "explain_a_run_without_error": ["explain", "--json", SNAPSHOTS / "normal.pickle.gz"],
    "explain_an_error_text": ["explain", "--json", "error.txt"],
    "explain_ranks": ["explain", "--json", "--workers", "1", "ranks"],
    "tune": ["tune", "--json", OOM],
    "diff": ["diff", "--json", SNAPSHOTS / "normal.pickle.gz", SNAPSHOTS / "loss_leak.pickle.gz"],
    "repro": ["repro", "--json", OOM, "-o", "repro.py"],
    "doctor": ["doctor", "--json", "--gpu", "T4"],
}


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of every value in a JSON document."""
    if isinstance(value, dict):
        yield path, "object"
        for name, each in value.items():
            is_field = re.fullmatch(r"[a-z][a-z0-9_]*", name)  # else a file, a line, a setting: data
            yield from fields(each, f"{path}.{name if is_field else '*'}")
    elif isinstance(value, list):
        yield path, "array"
        for each in value:
            yield from fields(each, f"{path}[]")
    else:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
        yield path, kinds[type(value)]


def types_of(document: dict[str, Any]) -> dict[str, set[str]]:
    """Return the types that each field has in a document."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, kind in fields(document):
        if path:
            found[path[1:]].add(kind)
    return found


def written(document: dict[str, Any]) -> str:
    """Return the text of a golden file."""
    rows = [f"{path}: {' or '.join(sorted(kinds))}\n" for path, kinds in sorted(types_of(document).items())]
    return f"schema {document['schema']}\n{''.join(rows)}"


def changes(golden: str, document: dict[str, Any]) -> list[str]:
    """Return what differs from a golden file: lost fields, new fields, and values of another type.

    A value may be null in one run and not in another: null fits any type.
    """
    number, *rows = golden.splitlines()
    known = {path: set(kinds.split(" or ")) for path, _, kinds in (row.partition(": ") for row in rows)}
    now = types_of(document)
    found = [] if number == f"schema {document['schema']}" else [f"{number} is now schema {document['schema']}"]
    found += [f"{path} is lost" for path in sorted(known.keys() - now.keys())]
    found += [f"{path} is new" for path in sorted(now.keys() - known.keys())]
    both = sorted(known.keys() & now.keys())
    nothing = {"null"}
    comparable = [path for path in both if known[path] != nothing and now[path] != nothing]
    different = [path for path in comparable if now[path] - nothing != known[path] - nothing]
    return found + [f"{path} is {now[path]}, and was {known[path]}" for path in different]


@pytest.mark.parametrize("name", COMMANDS)
def test_fields_of_json_are_those_of_the_schema(name: str, workplace: Path) -> None:
    (workplace / "error.txt").write_text(ERROR)
    (workplace / "epoch.py").write_text(EPOCH)
    (workplace / "ranks").mkdir()
    for rank, snapshot in enumerate(("normal", "normal", "loss_leak")):
        shutil.copy(SNAPSHOTS / f"{snapshot}.pickle.gz", workplace / "ranks" / f"rank{rank}.pickle.gz")
    line = [*command()[:3], *map(str, COMMANDS[name])]
    done = client.run(line, cwd=workplace, env=environment_of(workplace), timeout=900)
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("ULLAGE_GOLDEN") == "write":
        golden.write_text(written(document))
    assert changes(golden.read_text(), document) == []


def test_each_kind_of_change_is_found() -> None:
    document = {"schema": 1, "size_bytes": 5, "rows": [{"line": "a.py:1", "when": None}], "by_file": {"a.py": 1}}
    golden = written(document)
    assert changes(golden, document) == []
    assert changes(golden, {**document, "size_bytes": None}) == []
    assert changes(golden, {**document, "size_bytes": "5"}) == ["size_bytes is {'string'}, and was {'number'}"]
    assert changes(golden, {**document, "other": 1}) == ["other is new"]
    assert changes(golden, {**document, "by_file": {"b.py": 1}}) == []
    assert changes(golden, {**document, "schema": 2}) == ["schema 1 is now schema 2"]
    assert changes(golden, {name: document[name] for name in ("schema", "rows", "by_file")}) == ["size_bytes is lost"]
    assert changes(golden, {**document, "rows": []}) == ["rows[] is lost", "rows[].line is lost", "rows[].when is lost"]
