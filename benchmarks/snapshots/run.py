"""Explain the snapshots of public repositories, and write how far the answers are right: `make snapshots`.

    python -m benchmarks.snapshots.run FOLDER [--from PATTERN] [--only TEXT] [--write docs/snapshots.md]

FOLDER keeps what is fetched, outside the tree. PATTERN is where a repository is cloned from, with {owner} and {name}: a
folder of mirrors will do where GitHub cannot be reached. Exits 1 where a file is not read, or an answer is not what the
file itself says (`raw`) or what was expected of it (`snapshots.toml`).
"""

import argparse
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.real_cards.case import Origin
from benchmarks.real_cards.source import GITHUB, SourceError, fetched
from benchmarks.snapshots.page import page_of, summary
from benchmarks.snapshots.raw import RawCard, cards_of, read
from tools.stale_pages import write_page

HERE: Final = Path(__file__).parent
_POINTER: Final = b"version https://git-lfs"
_NO_LINE: Final = "(no line of yours)"
_NO_STACK: Final = ("(before recording began)", "(no stack was recorded)")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A snapshot in a public repository, and what is expected of its explanation, where that was written down."""

    repository: str
    commit: str
    path: str
    blob: str
    expected: Mapping[str, Any] | None = None
    known: str = ""
    """Why it is not read, or a figure differs, where that is known and no fault."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What came of one snapshot."""

    published: Published
    missing: str = ""
    """Why it could not be had."""
    refused: str = ""
    """What ullage says instead of an answer."""
    answer: Mapping[str, Any] | None = None
    cards: Mapping[int, RawCard] | None = None
    """What the file itself says; None where it is no plain data."""
    seconds: float = 0.0

    @property
    def _figures(self) -> Mapping[str, int]:
        return self.answer["evidence"] if self.answer else {}

    @property
    def card(self) -> RawCard | None:
        """The card that was explained, by the file itself."""
        return (self.cards or {}).get(self.answer["device"]) if self.answer else None

    @property
    def is_right_card(self) -> bool:
        """Whether it is the card where a request failed, else the one with the most memory."""
        ranks = {number: (bool(c.failed_bytes), c.peak_reserved_bytes) for number, c in (self.cards or {}).items()}
        return self.card is None or ranks[self.answer["device"]] == max(ranks.values()) if self.answer else False

    @property
    def allocated(self) -> str:
        """How the peak of what was allocated compares: "equal", "open" (the trace leaves it open), or what differs."""
        card, peak = self.card, self._figures.get("peak_allocated_bytes", 0)
        if card is None:
            return "equal" if not peak else f"{peak:,} and not 0"
        if not card.least_peak_bytes <= peak <= card.most_peak_bytes:
            return f"{peak:,} and not {card.least_peak_bytes:,}"
        return "equal" if card.least_peak_bytes == card.most_peak_bytes else "open"

    @property
    def reserved(self) -> str:
        """How the peak of what was reserved compares: "equal", or what differs."""
        peak = self._figures.get("peak_reserved_bytes", 0)
        expected = self.card.peak_reserved_bytes if self.card is not None else 0
        return "equal" if peak == expected else f"{peak:,} and not {expected:,}"

    @property
    def without_stack(self) -> float:
        """The share of what was held of which the file has no stack, so that nobody can tell a line."""
        return self._share(self._holders, lambda line: line in _NO_STACK)

    @property
    def without_line(self) -> float:
        """The share of what has a stack that is told neither a line of the user's nor an operation."""
        return self._share(self._with_stack, lambda line: line == _NO_LINE)

    @property
    def operation_alone(self) -> Mapping[str, float]:
        """What is told an operation and no line, as shares of what has a stack, the largest first."""
        named = [line for line in self._with_stack if line.startswith("(") and line != _NO_LINE]
        shares = {name: self._share(self._with_stack, name.__eq__) for name in named}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def _holders(self) -> Mapping[str, int]:
        return {holder["line"]: holder["bytes"] for holder in self.answer["holders"]} if self.answer else {}

    @property
    def _with_stack(self) -> Mapping[str, int]:
        return {line: size for line, size in self._holders.items() if line not in _NO_STACK}

    @staticmethod
    def _share(sizes: Mapping[str, int], is_counted: Callable[[str], bool]) -> float:
        return sum(size for line, size in sizes.items() if is_counted(line)) / max(1, sum(sizes.values()))

    @property
    def unexpected(self) -> list[str]:
        """What differs from what was expected of the headline."""
        expected, answer = self.published.expected, self.answer
        if expected is None:
            return []
        if answer is None:
            return ["no answer"]
        found = [f"{answer['cause']} and not {expected['cause']}"] if answer["cause"] != expected["cause"] else []
        if "card" in expected and answer["device"] != expected["card"]:
            found.append(f"card {answer['device']} and not {expected['card']}")
        peak = self._figures.get("peak_allocated_bytes", 0)
        if peak != expected.get("peak_bytes", peak):
            found.append(f"a peak of {peak:,} and not {expected['peak_bytes']:,}")
        first = answer["holders"][0]["line"] if answer["holders"] else ""
        if not first.startswith(expected["leads"]):
            found.append(f"first {first} and not {expected['leads']}")
        return found

    @property
    def is_right(self) -> bool:
        """Whether nothing differs that is not known."""
        if self.published.known:
            return not self.missing and not self.unexpected
        return self.answer is not None and self.is_right_card and self.is_right_peak and not self.unexpected

    @property
    def is_right_peak(self) -> bool:
        """Whether both peaks are those of the file, to the byte or within what it leaves open."""
        return self.allocated in ("equal", "open") and self.reserved == "equal"


def published(path: Path = HERE / "snapshots.toml") -> list[Published]:
    """Return the snapshots that are known, in their order."""
    return [Published(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["snapshots"]]


def explained(snapshot: Published, folder: Path, pattern: str, together: tuple[str, ...]) -> Explained:
    """Fetch a snapshot and explain it.

    Args:
        snapshot: which one.
        folder: where what is fetched is kept.
        pattern: where repositories are cloned from.
        together: all paths that are wanted of that commit: they are fetched at once.
    """
    origin = Origin(name=snapshot.repository, revision=snapshot.commit, licence="", paths=together)
    try:
        path = fetched(origin, folder, pattern) / snapshot.path
        content = path.read_bytes()
    except (SourceError, OSError) as error:
        return Explained(published=snapshot, missing=" ".join(str(error).split()))
    if content.startswith(_POINTER):
        return Explained(published=snapshot, missing="git LFS: only its pointer is there")
    if hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != snapshot.blob:
        return Explained(published=snapshot, missing="another file than the one that was found")
    began = time.perf_counter()
    command = [sys.executable, "-m", "ullage", "explain", str(path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    try:
        cards = cards_of(read(path))
    except pickle.UnpicklingError:
        cards = None
    if ended.returncode:
        refused = " ".join(ended.stderr.replace(str(path), path.name).split()).removeprefix("error: ")
        return Explained(published=snapshot, refused=refused, cards=cards, seconds=seconds)
    return Explained(published=snapshot, answer=json.loads(ended.stdout), cards=cards, seconds=seconds)


def _all(snapshots: list[Published], folder: Path, pattern: str) -> Iterator[Explained]:
    paths: dict[tuple[str, str], tuple[str, ...]] = {}
    for snapshot in snapshots:
        key = (snapshot.repository, snapshot.commit)
        paths[key] = (*paths.get(key, ()), snapshot.path)
    for snapshot in snapshots:
        found = explained(snapshot, folder, pattern, paths[snapshot.repository, snapshot.commit])
        said = found.missing or found.refused or (found.answer or {})["headline"]
        mark = "" if found.is_right else "  <--"
        print(f"{snapshot.repository} {snapshot.path.rsplit('/', 1)[-1]}: {said}{mark}", flush=True)
        yield found


def main() -> int:
    """Explain what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="pattern", default=os.environ.get("ULLAGE_REPOSITORIES", GITHUB))
    parser.add_argument("--only", default="", help="those that have this in REPOSITORY/PATH")
    parser.add_argument("--list", type=Path, default=HERE / "snapshots.toml", help="the list of snapshots")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    wanted = [one for one in published(options.list) if options.only in f"{one.repository}/{one.path}"]
    found = list(_all(wanted, options.folder.resolve(), options.pattern))
    for what, figure in summary(found):
        print(f"{what}: {figure}")
    if options.write:
        write_page(options.write, page_of(found))
    return 0 if all(one.is_right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
