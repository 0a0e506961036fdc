"""Wrap paragraphs and list items of the documents that people write at 120 columns; all other lines stay.

    python tools/wrap.py [FILES...]     without files: README.md, docs/ and what lies beside them

A block of lines is filled anew only if one of them is wider. Fenced blocks show what commands print, tables cannot be
wrapped, and what a command has written says so in its first lines: these are left alone.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

WIDTH = 120
ROOT = Path(__file__).resolve().parents[1]
ITEM = re.compile(r"\s*(?:[*-]|\d+\.)\s+")
WRITTEN_BY_A_COMMAND = re.compile(r"^Written by `make ", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_KEPT_SPACE = "\0"  # code is not broken
_ALONE = re.compile(r"\s*$|[|#<!]|:::|\s*```")  # lines that belong to no paragraph


def documents() -> list[Path]:
    """Return the documents that people write."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", ":!tests", ":!benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.exists() and not WRITTEN_BY_A_COMMAND.search(path.read_text()[:500])]


def filled(block: list[str]) -> list[str]:
    """Return the lines of one paragraph or item, none wider than it has to be."""
    if all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    first = item[0] if item else block[0][: -len(block[0].lstrip())]
    rest = block[1][: -len(block[1].lstrip())] if len(block) > 1 else " " * len(first)
    text = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    text = _CODE.sub(lambda code: code[0].replace(" ", _KEPT_SPACE), text)
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_KEPT_SPACE, " ") for line in lines]


def wrapped(text: str) -> str:
    """Return a document with every paragraph and item within the width."""
    lines, block = [], []
    is_fenced = False
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        is_alone = is_fenced or is_fence or _ALONE.match(line) is not None
        if is_alone or ITEM.match(line):
            lines += filled(block)
            block = []
        if is_alone:
            lines.append(line)
        else:
            block.append(line)
        is_fenced ^= is_fence
    return "\n".join([*lines, *filled(block)])


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or documents():
        text = path.read_text()
        if wrapped(text) != text:
            path.write_text(wrapped(text))
            print(path)


if __name__ == "__main__":
    main()
