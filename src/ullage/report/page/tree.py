"""Prepare a tree of byte counts for an HTML page. Each branch is a line with a bar.

A chain of branches with one child each becomes a single line.
"""

from dataclasses import dataclass, field
from typing import Final

from ullage.report.report import Icicle

_MOST_BRANCHES: Final = 24
_OPEN_SHARE: Final = 0.08


@dataclass(slots=True)
class Branch:
    """A branch in a tree of byte counts, with its size and its child branches.

    The largest child comes first.
    """

    names: tuple[str, ...]
    size_bytes: int = 0
    remark: str = ""
    share: float = 0.0
    meaning: str = ""
    """The label that determines the colour of this branch of the memory tree on the HTML page."""
    branches: list["Branch"] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether this branch of the memory tree is expanded when the HTML page opens."""
        return self.share >= _OPEN_SHARE


def tree_of(icicle: Icicle) -> list[Branch]:
    """Return the top branches of a tree of byte counts."""
    root = Branch(())
    children: dict[int, dict[str, Branch]] = {}
    is_by_role = icicle.levels[:1] == ("role",)
    for path, size, remark in icicle.leaves:
        node = root
        root.size_bytes += size
        for name in path:
            known = children.setdefault(id(node), {})
            if name not in known:
                known[name] = Branch((name,), meaning=path[0] if is_by_role else name)
                node.branches.append(known[name])
            node = known[name]
            node.size_bytes += size
        node.remark = remark
    _arrange(root, max(1, root.size_bytes))
    return root.branches


def _arrange(node: Branch, whole: int) -> None:
    node.share = node.size_bytes / whole
    node.branches = [_joined(branch) for branch in sorted(node.branches, key=lambda branch: -branch.size_bytes)]
    rest = node.branches[_MOST_BRANCHES:]
    if len(rest) > 1:
        others = Branch((f"({len(rest)} smaller)",), sum(branch.size_bytes for branch in rest))
        node.branches[_MOST_BRANCHES:] = [others]
    for branch in node.branches:
        _arrange(branch, whole)


def _joined(branch: Branch) -> Branch:
    while len(branch.branches) == 1 and branch.branches[0].size_bytes == branch.size_bytes:
        [only] = branch.branches
        only.names = (*branch.names, *only.names)
        branch = only
    return branch
