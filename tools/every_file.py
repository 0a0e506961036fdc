"""Write the section "Every file" of docs/design.md from the first line of each file: `python tools/every_file.py`.

A Python file is described by the first line of its docstring, one in C or C++ by the first line of its first
comment, or of its header's. `tests/project/test_layers.py` fails where the section is not what this writes.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ullage"
DESIGN = ROOT / "docs" / "design.md"
HEADING = "## Every file\n"
NATIVE = (".c", ".h", ".cpp", ".hpp")
FIRST_COLUMN = 34
LEFT_OUT = {"symbols", "__pycache__", "lib"}
"""Folders with nothing but lists and what was built."""
INTRODUCTION = """
The first line of each file below `src/ullage/`, written by `python tools/every_file.py`. A folder's line is that of its
package.
"""


def described(path: Path) -> str:
    """Return what a file or a package says of itself first; empty where it says nothing."""
    if path.is_dir():
        start = path / "__init__.py"
        return described(start) if start.exists() else ""
    text = path.read_text(encoding="utf-8")
    if path.suffix in NATIVE:
        found = re.match(r"(?:#.*\n|\s)*(?:/\*+|//)\s*(.+?)(?:\s*\*/|\n)", text)
        header = path.with_suffix(".hpp" if path.suffix == ".cpp" else ".h")
        if found is None and header != path and header.exists():
            return described(header)
        return found[1].strip() if found else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def rows(folder: Path, depth: int = 0) -> Iterator[str]:
    """Return the lines of a folder's files and folders: files first, each with what it says."""
    there = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    for path in there:
        is_code = path.suffix in (".py", *NATIVE) and path.name != "__init__.py"
        if path.name in LEFT_OUT or not (path.is_dir() or is_code):
            continue
        inside = list(rows(path, depth + 1)) if path.is_dir() else []
        if path.is_dir() and not inside:
            continue
        name = f"{'  ' * depth}{path.name}{'/' if path.is_dir() else ''}"
        yield f"{name:{FIRST_COLUMN}} {described(path)}".rstrip()
        yield from inside


def section() -> str:
    """Return the whole section."""
    parts = [HEADING, INTRODUCTION]
    families = sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in LEFT_OUT)
    for family in families:
        parts.append(f"\n### {family.name}\n\n{described(family)}\n\n```\n" + "\n".join(rows(family)) + "\n```\n")
    return "".join(parts)


def written(text: str) -> str:
    """Return the document with its section made anew; it goes up to the next heading of its level, or to the end."""
    start = text.index(HEADING)
    following = re.search(r"^## ", text[start + len(HEADING) :], re.MULTILINE)
    end = start + len(HEADING) + following.start() if following else len(text)
    return text[:start] + section() + ("\n" if following else "") + text[end:]


def main() -> int:
    """Write the document; exit code 1 with --check if it was not up to date."""
    before = DESIGN.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv:
        return int(before != after)
    DESIGN.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
