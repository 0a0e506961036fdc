"""Run the commands that stand in the documents, and write what they print beneath them: `make docs`.

    python tools/docs.py [--slow] [--check] [FILE ...]

A block that is run is a fenced one with `<!-- run -->` in the line before. Its lines that begin with `$ ` are commands;
what follows one of them is its standard output, and is written anew. `<!-- run exit 1 -->`: its last command must end
with that exit code, else with 0. `<!-- run slow -->`: it needs torch, and is run with --slow only. `<!-- run slow exit
1 -->`: both.

Commands run in bash, in a folder of their own where the tree's files are to be seen, 100 columns wide and without
colours; `python` and `ullage` are those of the Python that runs this. What differs only in how long something took, in
the date and the process of a run, or in the memory of the machine that runs it, counts as equal.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ROOT / "docs"
WIDTH = 100
MARKER = re.compile(r"^<!-- run(?P<slow> slow)?(?: exit (?P<exit>\d+))? -->$")
FENCE = re.compile(r"^```[a-z]+$")
PROMPT = "$ "
SECONDS = 300
VARYING = re.compile(
    r"\b\d+(?:\.\d+)? ?(?:s|ms|us)\b|\b\d+\.\d+ times\b"  # a time, and one beside another
    r"|-\d{8}-\d{6}-[0-9a-f]+\b|(?<=\boom-)\d+|(?<=\bprocess-)\d+|(?<=\bprocess )\d+"  # a run's folder, and in it
)

HOST = "Host memory at the peak"
"""The section of a report whose lines are those of the machine."""


class DocumentError(Exception):
    """Report a block that breaks the rules above, or a command that did not end as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block whose commands are run."""

    document: Path
    first: int
    """Index of the line after the opening fence."""
    last: int
    """Index of the closing fence."""
    is_slow: bool
    exit_code: int
    commands: tuple[str, ...]

    @property
    def place(self) -> str:
        """The document and the line of the marker."""
        path = self.document.relative_to(ROOT) if self.document.is_relative_to(ROOT) else self.document
        return f"{path}:{self.first - 1}"


def blocks_of(document: Path, text: str) -> Iterator[Block]:
    """Find the blocks of a document.

    Raises:
        DocumentError: a marker is misspelt, or stands before something else than a block with a command.
    """
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if not line.strip().startswith("<!-- run"):
            continue
        place = f"{document.name}:{at + 1}"
        marker = MARKER.match(line)
        if marker is None:
            raise DocumentError(f"{place}: {line!r} is no marker; expected <!-- run [slow] [exit N] -->")
        if not any(FENCE.match(line) for line in lines[at + 1 : at + 2]):
            raise DocumentError(f"{place}: a fenced block with a language must follow, such as ```console")
        last = next((n for n in range(at + 2, len(lines)) if lines[n] == "```"), None)
        if last is None:
            raise DocumentError(f"{place}: the block that follows is not closed")
        commands = tuple(one.removeprefix(PROMPT) for one in lines[at + 2 : last] if one.startswith(PROMPT))
        if not commands or not lines[at + 2].startswith(PROMPT):
            raise DocumentError(f"{place}: the first line of the block must be a command after {PROMPT!r}")
        yield Block(
            document=document,
            first=at + 2,
            last=last,
            is_slow=bool(marker["slow"]),
            exit_code=int(marker["exit"] or 0),
            commands=commands,
        )


def lines_of(block: Block) -> list[str]:
    """Run a block's commands, and return the lines that belong between its fences.

    Raises:
        DocumentError: a command ended with another exit code than it should, or tells where this machine keeps files.
    """
    found: list[str] = []
    with tempfile.TemporaryDirectory() as around:
        folder = workplace(Path(around))
        for number, command in enumerate(block.commands, 1):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment(Path(around)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            expected = block.exit_code if number == len(block.commands) else 0
            if done.returncode != expected:
                ended = f"{command!r} ended with exit code {done.returncode}; expected {expected}"
                raise DocumentError(f"{block.place}: {ended}\n{done.stdout}{done.stderr}")
            found += [PROMPT + command, *(line.rstrip() for line in plain(done.stdout, folder).rstrip().split("\n"))]
    text = "\n".join(found)
    if private := next(
        (path for path in (str(ROOT), str(Path.home()), around, sys.prefix) if f"{path}/" in text), None
    ):
        raise DocumentError(f"{block.place}: the output names {private}, a place of this machine\n{text}")
    if "```" in text:
        raise DocumentError(f"{block.place}: the output would close the block")
    return found


def plain(output: str, folder: Path) -> str:
    """Name files as one who stands in the tree would."""
    for root in (folder, folder.resolve(), ROOT):
        output = output.replace(f"{root}/", "")
    return output.replace(
        f"{sys.prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/", ""
    )


def workplace(around: Path) -> Path:
    """Make a folder that looks like the tree, so that what a command writes does not land in it."""
    folder = around / "ullage"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    programs = around / "bin"
    programs.mkdir()
    for name, rest in (("ullage", " -m ullage"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{rest} "$@"\n')
        (programs / name).chmod(0o755)
    return folder


def environment(around: Path) -> dict[str, str]:
    """Return what the commands find set: nothing that changes what they print."""
    kept = {name: value for name, value in os.environ.items() if not re.match("PYTORCH_|CUDA_|ULLAGE_|COLORTERM", name)}
    path = os.pathsep.join((str(around / "bin"), os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    return {**kept, "PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PYTHONWARNINGS": "ignore"}


def renewed(document: Path, *, slow: bool) -> tuple[str, list[Block]]:
    """Return a document with fresh output, and the blocks in which something else stood."""
    text = document.read_text(encoding="utf-8")
    lines = text.split("\n")
    stale = []
    for block in reversed(list(blocks_of(document, text))):  # from the end: what is before keeps its place
        if block.is_slow and not slow:
            continue
        fresh = lines_of(block)
        if steady(fresh) != steady(lines[block.first : block.last]):
            stale.append(block)
            lines[block.first : block.last] = fresh
    return "\n".join(lines), stale[::-1]


def steady(lines: list[str]) -> list[str]:
    """Leave out of lines what is another each time, or on another machine."""
    kept = []
    is_of_host = False
    for line in lines:
        if not is_of_host or not line:
            kept.append(VARYING.sub("", line))
        is_of_host = line.startswith(HOST) or (is_of_host and bool(line))
    return kept


def main() -> int:
    """Renew or check the documents; 1 where one is out of date, 2 where one cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a block is out of date")
    parser.add_argument("--slow", action="store_true", help="run what needs torch too")
    parser.add_argument("files", nargs="*", type=Path, default=sorted(DOCUMENTS.glob("*.md")))
    options = parser.parse_args()
    found = []
    try:
        for document in options.files:
            text, stale = renewed(document.resolve(), slow=options.slow)
            found += stale
            if stale and not options.check:
                document.write_text(text, encoding="utf-8")
    except DocumentError as error:
        print(error, file=sys.stderr)
        return 2
    for block in found:
        print(f"{block.place}: {'out of date' if options.check else 'written anew'}")
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
