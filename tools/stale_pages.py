"""List the pages of docs/ that are older than the code they describe: `make stale-pages`.

    python tools/stale_pages.py                        list them, with the commits since then
    python tools/stale_pages.py --stamp PAGE [--part]  print the stamp of a page that is written now

A page that a long command writes has a stamp: the command, the commit at which it ran, and the folders whose code the
page describes. Every such command writes its page by `write_page`; `PAGES` has all of them. A page that is not new is
no error: whoever changes the code sees here which figures may have changed, and which command measures them again.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ROOT / "docs"
STAMP = re.compile(
    r"^Written by `make (?P<target>[a-z-]+)` at commit (?P<commit>[0-9a-f]{7,}|unknown) \((?P<date>\d{4}-\d\d-\d\d)\)"
    r"(?P<changed>, with changes that are not committed)?(?P<part>; some rows are newer)?\.\s"
    r"The results on this page come from the code in (?P<paths>(?:`[^`]+`(?:,\s)?)+)\.$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page that a make target writes."""

    target: str
    paths: tuple[str, ...]
    """The files and folders on which the results of the page depend."""


PAGES = {
    "advised_scripts.md": Page("advise", ("src/ullage/predicting", "benchmarks/advise")),
    "bytes_left.md": Page("bytes-left", ("src/ullage/training", "benchmarks/ownership")),
    "commands.md": Page("commands", ("src/ullage/predicting", "src/ullage/cli", "benchmarks/commands")),
    "common_advice.md": Page("common-advice", ("src/ullage/gpu", "benchmarks/common_advice")),
    "contexts.md": Page("contexts", ("benchmarks/contexts", "tools/contexts.py", "tools/contexts_page.py")),
    "cudnn_plans.md": Page("cudnn", ("src/ullage/gpu/emulator/cudnn", "benchmarks/cudnn")),
    "explain_roles.md": Page("roles", ("src/ullage/explaining", "benchmarks/roles")),
    "layouts.md": Page("ranks", ("src/ullage/gpu", "src/ullage/predicting", "benchmarks/layouts")),
    "libraries.md": Page("libraries", ("src/ullage/gpu", "benchmarks/libraries")),
    "made_up_programs.md": Page("made-up", ("src/ullage/predicting", "benchmarks/made_up")),
    "our_gpus.md": Page("gpu-compare", ("src/ullage/gpu", "benchmarks/our_gpus")),
    "public_scripts.md": Page("public", ("src/ullage/gpu", "src/ullage/predicting", "benchmarks/public")),
    "real_cards.md": Page("real", ("src/ullage/gpu", "src/ullage/predicting", "benchmarks/real_cards")),
    "snapshots.md": Page("snapshots", ("src/ullage/explaining", "src/ullage/recorded", "benchmarks/snapshots")),
    "unexpected_costs.md": Page("unexpected-costs", ("src/ullage/gpu", "examples/unexpected_costs")),
    "versions.md": Page("versions", ("src/ullage/gpu", "tools/versions.sh")),
}
"""By the name in docs/."""


def write_page(page: Path, text: str, *, part: bool = False, between: tuple[str, str] | None = None) -> None:
    """Write what a command has measured, with its stamp.

    Args:
        page: the file. One that is not in `PAGES` gets no stamp.
        text: all of it, with a title; or what stands between two lines of the page.
        part: whether only some rows are measured now. The stamp stays that of the others.
        between: the lines, where people write the rest of the page.
    """
    if between is None:
        page.write_text(stamped(page, text, part=part), encoding="utf-8")
        return
    begin, end = between
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{page} has no place for the table; expected {begin.strip()} and {end.strip()}, each in a line")
    made = f"\n{stamp_of(page, part=part)}\n" if is_known(page) else ""
    page.write_text(f"{before}{begin}{made}\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def stamped(page: Path, text: str, *, part: bool = False) -> str:
    """Return a page's text with the stamp below its title."""
    if not is_known(page):
        return text
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{stamp_of(page, part=part)}\n\n{rest}"


def without_stamp(text: str) -> str:
    """Return what `stamped` was given."""
    return re.sub(STAMP.pattern + r"\n\n", "", text, count=1, flags=re.MULTILINE)


def is_known(page: Path) -> bool:
    return page.resolve().parent == DOCUMENTS and page.name in PAGES


def stamp_of(page: Path, *, part: bool = False) -> str:
    """Return the stamp of a page that is written now, or that of before where only a part of it is."""
    if part and (before := STAMP.search(page.read_text(encoding="utf-8"))):
        made = f"commit {before['commit']} ({before['date']}){before['changed'] or ''}; some rows are newer"
    else:
        commit, date = (git("show", "-s", "--abbrev=7", "--format=%h %cs", "HEAD") or "unknown 0000-00-00").split()
        changed = git("status", "--porcelain", "--", *PAGES[page.name].paths)
        made = f"commit {commit} ({date}){', with changes that are not committed' if changed else ''}"
    first = f"Written by `make {PAGES[page.name].target}` at {made}."
    return f"{first}\n{description_of(PAGES[page.name])}"


def description_of(page: Page) -> str:
    """Return the second sentence of a stamp."""
    text = f"The results on this page come from the code in {', '.join(f'`{path}`' for path in page.paths)}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def git(*arguments: str) -> str:
    """Return what git prints, or an empty text if git, the repository or the commit is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def has_history() -> bool:
    """Whether every commit is here: no archive, and no shallow clone."""
    return git("rev-parse", "--is-shallow-repository") == "false"


@cache
def history() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return every commit but merges, the newest first, with the names that its files had before it and have after."""
    text = git("log", "--no-merges", "--topo-order", "--find-renames", "--name-status", "--format=%x00%H")
    found = []
    for entry in text.split("\0")[1:]:
        commit, _, files = entry.partition("\n")
        names = [line.split("\t")[1:] for line in files.splitlines() if line]
        found.append((commit, [(each[0], each[-1]) for each in names]))
    return found


def commits_since(commit: str, paths: tuple[str, ...]) -> int:
    """Return how many commits have changed files of these paths since then; a file is followed to its former names."""
    later, former, count = set(git("rev-list", f"{commit}..HEAD").split()), set(paths), 0
    folders = tuple(f"{path}/" for path in paths)
    for each, files in history():
        changed = [(old, new) for old, new in files if new in former or new.startswith(folders)]
        former |= {old for old, _ in changed}
        count += bool(changed) and each in later
    return count


def lines() -> Iterator[str]:
    """Say of each page how old it is, the oldest first."""
    found = []
    for name, page in PAGES.items():
        stamp = STAMP.search((DOCUMENTS / name).read_text(encoding="utf-8"))
        if stamp is None:
            found.append((sys.maxsize, f"{name:22} has no stamp: make {page.target} writes it"))
            continue
        count = commits_since(stamp["commit"], page.paths)
        since = f"{count:4} commits since" if count else "  up to date     "
        found.append((count, f"{name:22}{since}  make {page.target:14} {stamp['commit']} ({stamp['date']})"))
    yield from (line for _, line in sorted(found, reverse=True))


def main() -> int:
    """List the pages, or print a stamp."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stamp", type=Path, metavar="PAGE", help="print the stamp of a page that is written now")
    parser.add_argument("--part", action="store_true", help="only some of its rows are measured now")
    options = parser.parse_args()
    if options.stamp is not None:
        print(stamp_of(options.stamp, part=options.part))
    elif not has_history():
        print("this clone has not the whole history, so that commits cannot be counted; git fetch --unshallow gets it")
    else:
        print("\n".join(lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
