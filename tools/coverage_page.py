"""build/coverage.md: how much of each package the tests run, and the functions that none of them enters.

    python tools/coverage_page.py COVERAGE.json TESTS.xml "tests" COMMIT [--write build/coverage.md]

The first is what `coverage json` writes, the second what pytest's `--junitxml` does; then which tests were asked for,
and the commit.
"""

import argparse
import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def package_of(file: str) -> str:
    """Return the package that a file lies in, with its family, or the file's own name."""
    parts = PurePosixPath(file).relative_to("src/ullage").parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def row_of(name: str, counts: Counter[str]) -> str:
    parts = counts["num_statements"] + counts["num_branches"]
    run = counts["covered_lines"] + counts["covered_branches"]
    share = f"{100 * run / parts:.1f}" if parts else ""
    return f"| {name} | " + " | ".join(f"{counts[count]:,}" for count in COUNTS) + f" | {share} |"


def never_entered(files: dict[str, Any]) -> Iterator[str]:
    """Yield the functions with statements of which none was run, as `file: function`."""
    for file, found in sorted(files.items()):
        names = [
            name
            for name, function in found["functions"].items()
            if name and function["summary"]["num_statements"] and not function["summary"]["covered_lines"]
        ]
        if names:
            yield f"`{PurePosixPath(file).relative_to('src/ullage')}`: " + ", ".join(f"`{name}`" for name in names)


def outcome(tests: ElementTree.Element) -> str:
    counts: Counter[str] = Counter()
    for suite in tests.iter("testsuite"):
        for name in ("tests", "failures", "errors", "skipped"):
            counts[name] += int(suite.get(name, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return f"{passed:,} passed, {counts['skipped']:,} skipped" + (f", {failed:,} failed" if failed else "")


def failures(tests: ElementTree.Element) -> list[str]:
    """Return the names of the tests that failed, each with its file's."""
    return sorted(
        f"`{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}`"
        for case in tests.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    )


def page(measured: dict[str, Any], tests: ElementTree.Element, asked: str, commit: str) -> str:
    files = measured["files"]
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for file, found in files.items():
        packages[package_of(file)].update({count: found["summary"][count] for count in COUNTS})
    total = sum(packages.values(), Counter())
    empty = [name for name, counts in packages.items() if not counts["num_statements"]]
    beginning = (
        f"Written by `make coverage`: `pytest {asked}` at commit {commit} ({outcome(tests)}), and the processes that "
        "these tests start. "
        "A statement or a branch counts where it was run at least once. What a process that was killed had run is not "
        "known, nor is what one ran that a test starts with an environment of its own; C and C++ are not measured."
    )
    listed = list(never_entered(files))
    failed = failures(tests)
    if failed:
        beginning += (
            " Failed while they were measured, by a tracer that keeps variables of frames alive and takes processor "
            f"time: {', '.join(failed)}."
        )
    rest = (
        "Functions that were not entered in any of these processes. Some run where nothing can be measured: after a "
        "fork whose end is sudden, where Python's tracing is switched off, or, as `_child/hooks/sitecustomize.py`, "
        "under a name outside of the package."
    )
    return "\n".join(
        [
            "# Coverage",
            "",
            textwrap.fill(beginning, 120, break_long_words=False, break_on_hyphens=False),
            "",
            "| package | statements | run | branches | taken | % of both |",
            "|---|---:|---:|---:|---:|---:|",
            *(row_of(f"`{name}`", packages[name]) for name in sorted(packages) if name not in empty),
            row_of("**all**", total),
            "",
            "## Not entered",
            "",
            textwrap.fill(rest, 120),
            "",
            *(textwrap.fill(f"* {line}", 120, subsequent_indent="  ", break_on_hyphens=False) for line in listed),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the page of coverage.")
    parser.add_argument("measured", type=Path)
    parser.add_argument("tests", type=Path)
    parser.add_argument("asked")
    parser.add_argument("commit")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    measured, tests = json.loads(given.measured.read_text()), ElementTree.parse(given.tests).getroot()
    text = page(measured, tests, given.asked, given.commit)
    if given.write:
        given.write.parent.mkdir(exist_ok=True)
        given.write.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
