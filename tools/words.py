"""List where a word of the left column of CONTRIBUTING's word list is still used.

    python tools/words.py [FILES...]     without files: README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and src/

It reads the prose of documents (without code, fenced blocks and quoted error texts), and the docstrings, texts and
comments of Python files. The exit code is 1 if it finds a word.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = "CONTRIBUTING.md"
_FENCED = re.compile(r"^[ ]*(```|~~~).*?^[ ]*\1", re.MULTILINE | re.DOTALL)
_ARGUMENT = re.compile(r"^\s*\w+: |\b\w+=\S*")
"""The name of a parameter in a docstring, or of a keyword in a call."""
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)


def words() -> list[re.Pattern[str]]:
    """Return a pattern for each entry of the left column."""
    table = (ROOT / LIST).read_text().partition("| not | but |")[2].splitlines()[2:]
    rows = table[: next(number for number, line in enumerate(table) if not line.startswith("|"))]
    entries = [
        entry.strip() for row in rows for entry in re.sub(r"\(.*?\)", "", row.split("|")[1]).split(",") if entry.strip()
    ]
    return [re.compile(rf"(?<![\w-]){re.escape(entry)}(?![\w-])(?! longer)", re.IGNORECASE) for entry in entries]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line numbers and the texts of a file that are written for people."""
    source = path.read_text()
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                for offset, line in enumerate(node.value.splitlines()):
                    yield node.lineno + offset, _ARGUMENT.sub("", _CODE.sub("", line))
        return
    table = source.find("| not | but |") if path.name == LIST else -1
    if table >= 0:
        source = source[:table] + re.sub(r"^\|.*$", "", source[table:], flags=re.MULTILINE)
    plain = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), source)
    plain = _CODE.sub(lambda code: "\n" * code[0].count("\n"), plain)
    yield from enumerate(plain.splitlines(), 1)


def found(paths: list[Path]) -> list[str]:
    """Return one line for each use of a word of the left column."""
    patterns = words()
    uses = []
    for path in paths:
        for number, text in prose(path):
            hits = {match[0] for pattern in patterns for match in pattern.finditer(text)}
            if hits:
                uses.append(f"{path.relative_to(ROOT)}:{number}: {', '.join(sorted(hits))}: {text.strip()[:100]}")
    return uses


def files() -> list[Path]:
    """Return the files that are read without arguments."""
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "src/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for path in (ROOT / name for name in listed.stdout.splitlines()) if path.exists()]


def main() -> int:
    """Print the uses and how many there are."""
    paths = [Path(name).resolve() for name in sys.argv[1:]] or files()
    uses = found(paths)
    print("\n".join([*uses, f"{len(uses)} uses of words that CONTRIBUTING replaces, in {len(paths)} files"]))
    return bool(uses)


if __name__ == "__main__":
    sys.exit(main())
