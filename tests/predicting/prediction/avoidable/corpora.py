"""The scripts of the corpora: as they are, and mended as their comments say."""

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
_MARK = "# mend: "


def names_in(folder: str) -> list[str]:
    return sorted(path.stem for path in (CORPUS / folder).glob("*.py"))


def mended(text: str) -> str:
    """The script as somebody would write it: a line with the mark becomes what follows the mark."""
    lines = []
    for line in text.splitlines():
        _, mark, mend = line.partition(_MARK)
        lines.append(line[: len(line) - len(line.lstrip())] + mend if mark else line)
    return "\n".join(lines) + "\n"


def marked_lines(text: str) -> list[int]:
    """The numbers of the lines of code that the mending replaces."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if _MARK in line and not line.lstrip().startswith(_MARK)
    ]
