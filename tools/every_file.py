"""Write the section "Every file" of docs/design.md from the first sentence of each file: `python tools/every_file.py`.

A Python file is described by the first sentence of its docstring. A C or C++ file is described by the first sentence of
its first comment, or of the first comment in its header. `tests/project/test_layers.py` fails if the section differs
from the output of this script.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ullage"
DESIGN = ROOT / "docs" / "design.md"
HEADING = "## Every file\n"
NATIVE = (".c", ".h", ".cpp", ".hpp")
FIRST_COLUMN = 34
WIDTH = 120
LEFT_OUT = {"symbols", "__pycache__", "lib"}
"""Folders with nothing but lists and what was built."""
INTRODUCTION = """
This section lists all files and folders below `src/ullage/`, each with the first sentence of its docstring or comment.
`python tools/every_file.py` writes this section.
"""


def described(path: Path) -> str:
    """Return the first sentence of a file's docstring or comment, or of a package; empty if it has none."""
    if path.is_dir():
        start = path / "__init__.py"
        return described(start) if start.exists() else ""
    text = path.read_text(encoding="utf-8")
    if path.suffix in NATIVE:
        found = re.match(r"(?:#[^\n]*\n|\s)*(?:/\*+(.+?)\*/|((?://[^\n]*\n)+))", text, re.DOTALL)
        header = path.with_suffix(".hpp" if path.suffix == ".cpp" else ".h")
        if found is None and header != path and header.exists():
            return described(header)
        comment = (found[1] or found[2]) if found else ""
        return first_sentence(re.sub(r"^\s*(?://|\*)[ \t]?", "", comment, flags=re.MULTILINE))
    return first_sentence(ast.get_docstring(ast.parse(text)) or "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line; its first paragraph if that is a single sentence."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`\"])", paragraph)[0]


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
        wrapped = textwrap.fill(described(family), WIDTH, break_long_words=False, break_on_hyphens=False)
        parts.append(f"\n### {family.name}\n\n{wrapped}\n\n```\n" + "\n".join(rows(family)) + "\n```\n")
    return "".join(parts)


def written(text: str) -> str:
    """Return the document with a new section, which ends at the next heading of the same level or at the end."""
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
