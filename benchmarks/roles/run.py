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

`ullage explain` infers the role of each block (parameter, gradient, activation, and so on) from a snapshot alone. The
first table has the share of bytes whose role is right, compared with [the roles that `ullage predict` knows](roles.md).
`predict` watches the same run from inside and knows the owner of every tensor. The {count} workloads ran on an emulated
A100 with torch's Python stacks.

`explain` uses three properties of a block: its stack (`Optimizer.step`, a module's call, `Module._apply`, autograd's
threads), its lifetime (a block that a forward pass allocates and that is alive in backward is an activation), and its
size (a gradient has the size of its parameter). Each role has a degree of certainty:

* *certain*: PyTorch's own functions are on the stack, and the lifetime of the block agrees.
* *likely*: the lifetime and the size of the block indicate the role.
* *a guess*: the lifetime was not recorded completely, or only the size indicates the role.
* *unknown*: nothing indicates the role.

"""
RIGHT = """
The figures are bytes with the right role as a share of all bytes at the peak. The rules were developed on three
quarters of the workloads; every fourth workload was held out until the rules were finished. A recording that ends at
the peak, as the recording of a failed run does, does not show the full lifetime of the blocks alive at the peak. A
recording that begins with the second step does not show which code allocated the parameters.
"""
DIFFERENCES = """
## Where explain and predict differ, and which is right

* The detached result of another module (`gan`): predict calls it an input of the second module, explain an activation
  of the first. It is both.
* The gradient of an input with `requires_grad` (`checkpointed`): explain calls it a gradient. Predict calls it a
  temporary of backward, because it knows only the gradients of parameters. Explain is right.
* Workspaces that cuBLASLt allocates separately from cuBLAS, if parameters have the same size (1 MiB): in a short run,
  explain cannot distinguish them from activations.
* Parameters that a library allocates outside of torch's modules (`fsdp2_one_rank`: the shards), and long-lived
  parameters whose size no gradient has: explain calls them inputs, which is wrong.
* L-BFGS with a closure that uses an existing batch: nothing is allocated between two steps, so they look like one step.
* The buckets of DDP: both call them inputs, which is wrong. They hold gradients.
"""


BACKWARD = """
## How accurate is the forward line of memory that backward allocates?

Autograd's threads have no Python frames. If the snapshot has C++ frames (`stacks="all"`, PyTorch's default), they name
the operation. Backward runs operations in the reverse order of forward, so the last convolution of forward is the first
of backward. If forward and backward have the same number of operations of one name, `explain` matches them and shows
"train.py:12 (its backward)".

In three cases the line is called a guess: a block between two operations of one line; an operation name that occurs
less often in backward than in forward, because the first operations of forward may need no gradient; and a block that
is followed by the free of a block saved by that line.

The table compares these lines with PyTorch's anomaly mode, which records the line that created each node of autograd's
graph. It covers all bytes that backward allocates without a line of the script:

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
