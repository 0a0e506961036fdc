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
HEAD = """# How right the roles of `explain` are

`ullage explain` tells from a snapshot alone what memory was for: by the stacks (`Optimizer.step`, a module's call,
`Module._apply`, what runs in autograd's threads), by the lives (what a forward pass makes and backward still finds is
an activation), and by the sizes (a gradient has its parameter's). Here it is compared with
[what `ullage predict` knows](roles.md), which watches the same run from inside and asks every tensor's owner. The
{count} workloads ran on an emulated A100, with torch's Python stacks.

How sure a role is, is one of three words. *certain*: PyTorch's own functions are on the stack, and the block's life
agrees. *likely*: its life and its size say so. *a guess*: its life was not seen whole, or nothing but a size says so.
Where nothing tells, the role is *unknown*.

"""
RIGHT = """
Right bytes of all bytes at the peak. The rules were made while looking at three quarters of the workloads; every fourth
was held out, and looked at when the rules were done. Where a recording ends at the peak, as that of a run that fails
does, it does not show how long anything lives that is alive then; where it begins with the second step, it does not
show what allocated the parameters.
"""
DIFFERENCES = """
## Where they differ, and who is right

* A tensor that is another module's result, detached (`gan`): an input of the second module for predict, an activation
  of the first for explain. It is both.
* The gradient of an input that asks for one (`checkpointed`): explain calls it a gradient, predict a temporary of
  backward, because it knows gradients of parameters alone. Explain is right.
* Workspaces that cuBLASLt takes apart from cuBLAS's, where parameters have the same size (1 MiB): explain cannot tell
  them from activations while the run is short.
* Parameters that a library makes outside of torch's modules (`fsdp2_one_rank`: the shards) and kept ones whose size no
  gradient has: explain calls them inputs, wrongly.
* L-BFGS whose closure has its batch from before: nothing is allocated between two steps, so that they look like one.
* The buckets of DDP are inputs for both, which is wrong for both: they hold gradients.
"""


BACKWARD = """
## The forward line of what backward allocates

Autograd's threads have no Python frames. Where the snapshot has C++ frames (`stacks="all"`, PyTorch's default), they
name the operation, and backward runs operations in the reverse order of forward: the last convolution of forward is the
first of backward. Where there are as many of one name in both, `explain` says "train.py:12 (its backward)". A
guess, and called so, is what lies between two operations of one line; what has fewer of its name in backward than in
forward, where the first ones may need no gradient; and what is followed by the free of what a line had kept.
PyTorch's anomaly mode knows the line that made each node of autograd's graph. Of all bytes that backward
allocates with no line of the script's:

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
    text += "| recording | all | looked at | held out |\n|---|---|---|---|\n"
    for recorded, compared in found.items():
        kept = [each for each in compared if each.name in held_out]
        seen = [each for each in compared if each.name not in held_out]
        figures = " | ".join(f"{100 * share(each):.1f} %" if each else "" for each in (compared, seen, kept))
        text += f"| {recorded.value} ({len(compared)} workloads) | {figures} |\n"
    text += RIGHT
    text += "\n| how sure | of all bytes | right |\n|---|---|---|\n" + "\n".join(by_sureness(whole)) + "\n"
    text += "\n| role | bytes at the peaks | found |\n|---|---|---|\n" + "\n".join(by_role(whole)) + "\n"
    text += "\n## Each workload, recorded from its beginning to its end\n\n"
    text += "| workload | peak | right | what predict knows, and explain says |\n|---|---|---|---|\n"
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
