"""How right the roles are that `ullage explain` tells from a snapshot: `make roles`, which writes a document of it.

Each workload runs once on an emulated card. `ullage predict` watches it from inside, and knows who owns each block; a
snapshot of the same run is all that explain has. What both say of each block at the peak is compared, in bytes.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.roles.collect import all_names, collect
from benchmarks.roles.compare import Compared, Recorded, compare
from benchmarks.roles.compare_lines import NAMES, Lines, collect_lines, compare_lines
from tools.stale_pages import write_page
from ullage.base.block_role import Role
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.role import Sureness

GOAL = 0.98
WRONG_SHOWN = 0.005
HEAD = """# How accurate are the roles of `explain`?

`ullage explain` infers the role of each block (parameter, gradient, activation, and so on) from a snapshot.
`ullage predict` observes a run while the run goes on, and [knows the owner of every tensor](roles.md). The first
table shows how often `ullage explain` finds the same block roles as `ullage predict`. The percentage is the share of
bytes for which `ullage explain` finds the right role. For the comparison, {count} training workloads ran on an
emulated A100 and recorded torch's Python stacks.

`ullage explain` uses three properties of a block: its stack, its lifetime, and its size. The stack of a block shows,
for example, whether `Optimizer.step` or the call of a module allocated the block. The lifetime of blocks shows, for
example, which blocks are activations. The forward pass allocates activations, and activations are still alive in the
backward pass. The size of blocks shows, for example, which blocks are gradients, because a gradient has the size of
its parameter. The report of `ullage explain` states how certain each role is.

* *certain*: PyTorch's own functions on the block's stack show the role, and the lifetime of the block fits this role.
* *likely*: the lifetime and the size of the block indicate its role.
* *a guess*: only the size of the block indicates the role, or the recording does not contain the block's whole
  lifetime.
* *unknown*: nothing indicates the role.

"""
RIGHT = """
Each percentage is the share of bytes at the memory peak whose role `ullage explain` infers correctly. The rules by
which `ullage explain` infers roles were developed on three quarters of the workloads. The other quarter of the
workloads ("held out") was used only to test the finished rules. Some recordings end at the peak, such as the
recording of a failed run. If a recording ends at the peak, it does not show
the whole lifetime of the blocks that are alive at the peak. If a recording begins with the second training step, it
does not show which code allocated the parameters.
"""
DIFFERENCES = """
## Where explain and predict differ, and which is right

* The workload `gan` passes the detached output of one module to a second module. `ullage predict` reports the
  detached output as an input of the second module. `ullage explain` reports the detached output as an activation of
  the first module. Both reports are right.
* In the workload `checkpointed`, an input has `requires_grad`. `ullage explain` correctly reports the gradient of the
  input as a gradient. `ullage predict` reports the gradient of an input as a temporary, because `ullage predict`
  knows only the gradients of parameters.
* If a model has a parameter of 1 MiB, `ullage explain` may report a cuBLASLt workspace of 1 MiB as an activation in a
  short run.
* Parameters that a library allocates outside torch's modules, such as the shards in workload `fsdp2_one_rank`:
  `ullage explain` reports these parameters as inputs, which is wrong.
* If no gradient has the same size as a parameter, `ullage explain` may report the parameter as an input, which is
  wrong.
* `ullage explain` may count two L-BFGS steps as one step if the script allocates no memory between the two steps.
* The gradient buckets of `DistributedDataParallel`: `ullage explain` and `ullage predict` report the buckets as
  inputs, which is wrong.
"""


BACKWARD = """
## How accurate is the forward line of memory that backward allocates?

Autograd's threads run the backward pass. These threads have no Python frames. For a block of the backward pass,
`ullage explain` therefore has to find the forward line of the same operation. If the snapshot has C++ frames
(`stacks="all"`, PyTorch's default), the C++ frames name the backward operation. The backward pass runs operations in
the reverse order of the forward pass: the last convolution of forward is the first convolution of backward. If an
operation name occurs equally often in forward and in backward, `ullage explain` matches the operations of this name
in reverse order. If `ullage explain` finds the forward line of a backward operation, the report shows this line, such
as "train.py:12 (its backward)". The report marks the forward line as a guess, for example, if the name of the operation
occurs less often in backward than in forward.

PyTorch's anomaly mode records the source line that created each node of autograd's graph. The table compares the
forward lines from `ullage explain` with the lines from anomaly mode. The comparison covers all memory blocks of the
backward pass that have no line of the script on their stack.

"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("--kept", type=Path, help="a folder for the runs, to compare them again without running them")
    parser.add_argument("names", nargs="*", help="the workloads; all of them where none is named")
    return parser.parse_args()


def share(found: Sequence[Compared]) -> float:
    """The share of bytes that are right, over all workloads."""
    return sum(each.right_bytes for each in found) / max(1, sum(each.peak_bytes for each in found))


def row_of(each: Compared, *, is_held_out: bool) -> str:
    wrong = [
        f"{known.label} as {said.label} {100 * size / each.peak_bytes:.1f} %"
        for (known, said), size in each.wrong().most_common()
        if size >= WRONG_SHOWN * each.peak_bytes
    ]
    cells = (
        each.name + (" (held out)" if is_held_out else ""),
        text_of_bytes(each.peak_bytes),
        f"{100 * each.right_bytes / each.peak_bytes:.1f} %",
        "; ".join(wrong),
    )
    return f"| {' | '.join(cells)} |"


def by_sureness(found: Sequence[Compared]) -> Iterator[str]:
    """How often each word is right."""
    said: Counter[Sureness] = Counter()
    right: Counter[Sureness] = Counter()
    for each in found:
        for (known, role, sureness), size in each.found.items():
            said[sureness] += size
            right[sureness] += size if known == role else 0
    total = sum(said.values())
    for sureness in Sureness:
        if said[sureness]:
            share_said = f"{100 * said[sureness] / total:.1f} %"
            yield f"| {sureness.word} | {share_said} | {100 * right[sureness] / said[sureness]:.1f} % |"


def by_role(found: Sequence[Compared]) -> Iterator[str]:
    """Of the bytes of each role, the share that is found."""
    known: Counter[Role] = Counter()
    right: Counter[Role] = Counter()
    for each in found:
        for (role, said, _), size in each.found.items():
            known[role] += size
            right[role] += size if role == said else 0
    for role in Role:
        if known[role]:
            yield f"| {role.label} | {text_of_bytes(known[role])} | {100 * right[role] / known[role]:.1f} % |"


def lines_rows(found: Sequence[Lines]) -> Iterator[str]:
    """How much is told, how sure, and how often it is right."""
    everything = Lines(
        name="all of them",
        said=sum((each.said for each in found), Counter()),
        right=sum((each.right for each in found), Counter()),
    )
    for each in (*found, everything):
        total = sum(each.said.values())
        cells = [each.name]
        for sureness in (Sureness.LIKELY, Sureness.GUESS):
            said = each.said[sureness]
            right = f", {100 * each.right[sureness] / said:.1f} % right" if said else ""
            cells.append(f"{100 * said / total:.0f} %{right}")
        yield f"| {' | '.join(cells)} |"


def document(names: Sequence[str], found: dict[Recorded, list[Compared]], lines: Sequence[Lines]) -> str:
    held_out = set(all_names()[3::4])
    whole = found[Recorded.WHOLE]
    text = HEAD.format(count=len(names))
    text += "| recording | all | used for the rules | held out |\n|---|---|---|---|\n"
    for recorded, compared in found.items():
        kept = [each for each in compared if each.name in held_out]
        seen = [each for each in compared if each.name not in held_out]
        figures = " | ".join(f"{100 * share(each):.1f} %" if each else "" for each in (compared, seen, kept))
        text += f"| {recorded.value} ({len(compared)} workloads) | {figures} |\n"
    text += RIGHT
    text += "\n| certainty | share of all bytes | right |\n|---|---|---|\n" + "\n".join(by_sureness(whole)) + "\n"
    text += "\n| role | bytes at the peaks | found |\n|---|---|---|\n" + "\n".join(by_role(whole)) + "\n"
    text += "\n## Results for each workload, recorded completely\n\n"
    text += "| workload | peak | right | role by predict, as role by explain |\n|---|---|---|---|\n"
    text += "\n".join(row_of(each, is_held_out=each.name in held_out) for each in whole) + "\n"
    text += DIFFERENCES + BACKWARD + "| workload | likely | a guess |\n|---|---|---|\n"
    return text + "\n".join(lines_rows(lines)) + "\n"


def main() -> int:
    given = arguments()
    names = given.names or all_names()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.kept or Path(temporary)
        found: dict[Recorded, list[Compared]] = {recorded: [] for recorded in Recorded}
        for name in names:
            collect(name, folder)
            for recorded in Recorded:
                compared = compare(name, folder, recorded)
                if compared is not None:
                    found[recorded].append(compared)
            print(row_of(found[Recorded.WHOLE][-1], is_held_out=False), flush=True)
        lines = []
        for name in NAMES if not given.names else ():
            collect_lines(name, folder / "lines")
            lines.append(compare_lines(name, folder / "lines"))
    text = document(names, found, lines)
    print(text)
    if given.write:
        write_page(given.write, text)
    return 0 if share(found[Recorded.WHOLE]) >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
