"""Each kind of rank alone in its process, beside ranks that torchrun starts together: `make ranks`.

    python -m benchmarks.layouts.ranks [--only TEXT] [--packages FOLDER] [--kept FILE] [--write docs/layouts.md]

Both run on emulated cards. The ranks that run together tell their own peaks, of PyTorch's allocator, without
`ullage predict`. FOLDER has DeepSpeed (tools/packages.sh). FILE keeps rows by the content of the installed package and
of the scripts, so that a run that was cut off goes on, and all rows of a table are of one tree; rows of another tree
are run again. Exits 1 where a rank's peaks differ.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tools.stale_pages import write_page

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "tests" / "predicting" / "prediction" / "ranks"
GPU: Final = "H100"
STEPS: Final = 3
_BEGIN, _END = "<!-- ranks -->\n", "<!-- end of ranks -->"
Peaks = dict[int, tuple[int, int]]
"""Of each rank, the peaks of allocated and reserved memory."""


class RunError(Exception):
    """Ranks that did not come to their end; the text is what they said."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layout: a script of tests/predicting/prediction/ranks, with its arguments, on so many ranks."""

    kind: str
    script: str
    arguments: tuple[str, ...] = ()
    ranks: int
    routing: str = "drawn"
    needs: str = ""
    """The package that it needs beside torch."""

    @property
    def name(self) -> str:
        """The case's words, as in `pipeline.py GPipe data on 4`."""
        routing = f" --routing {self.routing}" if self.routing != "drawn" else ""
        return f"{' '.join((f'{self.script}.py', *self.arguments))}{routing} on {self.ranks}"


def _cases() -> list[Case]:
    found = []
    for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        # Of DualPipeV on four ranks torch asks for eight micro-batches; there are four.
        for ranks in (2,) if schedule == "DualPipeV" else (2, 4):
            found.append(Case(kind="pipeline", script="pipeline", arguments=(schedule,), ranks=ranks))
    found += [
        Case(kind="pipeline, sends by hand", script="by_hand", ranks=2),
        Case(kind="pipeline, sends by hand", script="by_hand", ranks=4),
    ]
    for routing in ("balanced", "worst"):
        for ranks in (2, 4):
            found.append(Case(kind=f"expert, {routing}", script="expert", ranks=ranks, routing=routing))
    found += [
        Case(kind="context (ring attention)", script="context", ranks=2),
        Case(kind="context (ring attention)", script="context", ranks=4),
        Case(kind="FSDP2", script="sharded", ranks=2),
        Case(kind="FSDP2, offloaded", script="sharded", arguments=("offload",), ranks=2),
        Case(kind="HSDP", script="sharded", arguments=("hsdp",), ranks=4),
        Case(kind="HSDP, offloaded", script="sharded", arguments=("hsdp", "offload"), ranks=4),
        Case(kind="FSDP2 x tensor", script="sharded", arguments=("tensor",), ranks=4),
        Case(kind="FSDP2 x pipeline", script="pipeline", arguments=("1F1B", "data"), ranks=4),
        Case(kind="FSDP2 x pipeline", script="pipeline", arguments=("Interleaved1F1B", "data"), ranks=4),
        Case(kind="tensor x pipeline", script="pipeline", arguments=("1F1B", "tensor"), ranks=4),
        Case(kind="tensor x pipeline", script="pipeline", arguments=("ZBVZeroBubble", "tensor"), ranks=4),
        Case(kind="context x pipeline", script="pipeline", arguments=("GPipe", "context"), ranks=4),
        Case(kind="FSDP2 x context", script="context", arguments=("data",), ranks=4),
        Case(kind="FSDP2 x expert, balanced", script="expert", arguments=("data",), ranks=4, routing="balanced"),
        Case(kind="objects and sizes", script="objects", ranks=2),
        Case(kind="objects and sizes", script="objects", ranks=4),
        Case(kind="objects, by Gloo", script="objects", arguments=("gloo",), ranks=2),
        Case(kind="gathered sizes", script="gathered", ranks=2),
        Case(kind="gathered sizes", script="gathered", ranks=4),
        Case(kind="gathered sizes, by Gloo", script="gathered", arguments=("gloo",), ranks=2),
        Case(kind="exchanged sizes", script="exchanged", ranks=2),
        Case(kind="exchanged sizes", script="exchanged", ranks=4),
        Case(kind="FSDP1, optimizer's state gathered", script="fsdp1", ranks=2),
    ]
    for stage in ("1", "2", "3"):
        for ranks in (2, 4):
            found.append(Case(kind=f"ZeRO {stage}", script="zero", arguments=(stage,), ranks=ranks, needs="deepspeed"))
    found.append(Case(kind="ZeRO 2, offloaded", script="zero", arguments=("2", "offload"), ranks=2, needs="deepspeed"))
    pipeline = Case(kind="DeepSpeed's pipeline", script="deepspeed_pipeline", ranks=2, needs="deepspeed")
    experts = Case(kind="DeepSpeed's experts x ZeRO 1", script="deepspeed_experts", ranks=4, needs="deepspeed")
    found += [
        pipeline,
        replace(pipeline, kind="DeepSpeed's pipeline x ZeRO 1", arguments=("zero",), ranks=4),
        replace(experts, arguments=("1",), routing="balanced"),
        replace(experts, kind="DeepSpeed's experts x ZeRO 2", arguments=("2",), ranks=2, routing="balanced"),
    ]
    return found


CASES: Final = _cases()


def started(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as anybody would."""
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)


Start = Callable[..., subprocess.CompletedProcess[str]]


def together(case: Case, environment: Mapping[str, str], folder: Path, start: Start = started) -> Peaks:
    """Return the peaks of ranks that torchrun starts on emulated cards.

    Raises:
        RunError: they have failed.
    """
    words = ["torchrun", "--standalone", "--nproc-per-node", str(case.ranks)]
    words += [str(SCRIPTS / f"{case.script}.py"), *case.arguments]
    card = f"ullage.emulate({GPU!r}, count={case.ranks}, routing={case.routing!r})"
    code = f"import ullage; {card}; import sys; sys.argv = {words!r}; from torch.distributed.run import main; main()"
    done = start([sys.executable, "-c", code], cwd=folder, env=environment)
    for logs in Path(environment["TMPDIR"]).glob("torchelastic_*"):  # torchrun keeps them
        shutil.rmtree(logs)
    if done.returncode:
        raise RunError(done.stderr)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {int(row[0]): (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and all(map(str.isdecimal, row))}


def alone(case: Case, environment: Mapping[str, str], folder: Path, start: Start = started) -> Peaks:
    """Return the peaks of every rank as `ullage predict --rank all` foretells them, each alone in its process.

    Raises:
        RunError: one has failed.
    """
    options = ["--gpu", GPU, "--json", "--steps", str(STEPS), "--routing", case.routing]
    world = ["--world-size", str(case.ranks), "--rank", "all"]
    words = [str(SCRIPTS / f"{case.script}.py"), *case.arguments]
    command = [sys.executable, "-m", "ullage", "predict", *options, *world, *words]
    done = start(command, cwd=folder, env=environment)
    if done.returncode not in (0, 1, 4):  # fits, does not, or cannot be judged: the peaks are there
        raise RunError(done.stderr)
    answer = json.loads(done.stdout)
    return {row["rank"]: (row["peak_allocated_bytes"], row["peak_reserved_bytes"]) for row in answer["ranks"]}


def _row(case: Case, environment: Mapping[str, str], folder: Path) -> tuple[str, bool]:
    """Return a row of the table, and whether every rank is equal."""
    try:
        real, lone = together(case, environment, folder), alone(case, environment, folder)
    except RunError as error:
        return f"| {case.kind} | `{case.name}` | | | **fails**: {_last_line(error)} |", False
    distinct = len(set(real.values()))
    fullest = max(sorted(real), key=lambda rank: real[rank][::-1])
    same = real == lone and len(real) == case.ranks
    differs = ", ".join(f"rank {rank}: {lone.get(rank)}" for rank in real if real[rank] != lone.get(rank))
    figures = f"{real[fullest][0]:,} / {real[fullest][1]:,} (rank {fullest})"
    return f"| {case.kind} | `{case.name}` | {figures} | {distinct} | {'equal' if same else differs} |", same


def _run(case: Case, packages: Path | None) -> tuple[str, bool]:
    """Run a case in a folder of its own; return as `_row`."""
    with tempfile.TemporaryDirectory(prefix="ullage-") as folder:
        environment = os.environ | {"TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        if case.needs and packages is not None:
            environment["PYTHONPATH"] = str(packages.absolute())
        return _row(case, environment, Path(folder))


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and "Error" in line]
    return lines[-1].strip()[:200] if lines else "?"


def tree_digest() -> str:
    """Return what identifies the installed package and the scripts: a digest of their files."""
    found = find_spec("ullage")
    assert found is not None
    assert found.submodule_search_locations
    package = Path(next(iter(found.submodule_search_locations)))
    digest = hashlib.sha256()
    for folder in (package, SCRIPTS):
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def _kept_rows(path: Path | None, tree: str) -> dict[str, tuple[str, bool]]:
    """Return the rows that were run of this tree, by the names of their cases."""
    if path is None or not path.exists():
        return {}
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["name"]: (line["row"], line["same"]) for line in lines if line["tree"] == tree}


def _page(rows: list[str], equal: int, tree: str) -> str:
    head = (
        "| kind | script | the fullest rank, allocated / reserved | kinds of ranks | alone |\n|---|---|---|---|---|\n"
    )
    return (
        f"{head}{chr(10).join(rows)}\n\nIn {equal} of {len(rows)} scripts, every rank that ran alone had the same "
        "peaks, to the byte, as the same rank in the run of all ranks.\n"
        f"All scripts ran with the same source files (tree {tree}).\n"
    )


def main() -> int:
    """Run the cases, print the rows, and write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    tree = tree_digest()
    kept = _kept_rows(options.kept, tree)
    rows, equal = [], 0
    for case in CASES:
        if options.only not in f"{case.kind} {case.name}" or (case.needs and options.packages is None):
            continue
        if case.name in kept:
            row, same = kept[case.name]
        else:
            row, same = _run(case, options.packages)
            if options.kept is not None:
                with options.kept.open("a") as file:
                    file.write(json.dumps({"tree": tree, "name": case.name, "row": row, "same": same}) + "\n")
        rows.append(row)
        equal += same
        print(row, flush=True)
    if options.write:
        write_page(options.write, _page(rows, equal, tree), between=(_BEGIN, _END))
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
