"""Run what others measured on real cards on the emulated one, and write how far both agree.

    python -m benchmarks.real_cards.run FOLDER [--from PATTERN] [--only TEXT] [--write docs/real_cards.md]

FOLDER keeps what is fetched and made, outside the tree. PATTERN is where a repository is cloned from, with {owner} and
{name}: a mirror's folder will do where GitHub cannot be reached. What was run before is kept, with its date and
versions, in a file a source (`--results`), so that cases can be run one by one. Exit code 1 if a case that was run now
could not be run, or differs where it was equal before.
"""

import argparse
import datetime
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import HERE, Case, Result, Status, cases_of
from benchmarks.real_cards.source import GITHUB, SourceError
from benchmarks.real_cards.table import page_of
from tools.stale_pages import write_page
from ullage import UllageError

SOURCES: Final = (
    *("recordings", "fitcheck", "fitcheck_again", "fitcheck_verdicts", "liger", "golf", "litgpt", "megatron"),
    *("torchao", "torchtune", "torchtitan", "peft_images", "untried"),
)
"""Modules of this folder, each with `run(case, bench) -> Result` and a toml of its name; the order of the page."""


def main() -> int:
    """Run the cases that are asked for, keep their results, and write the page."""
    options = _options()
    bench = Bench(folder=options.folder.resolve(), environments=options.environments.resolve(), pattern=options.pattern)
    cases = {source: cases_of(HERE / f"{source}.toml") for source in SOURCES}
    results = {source: read_results(options.results / f"{source}.json") for source in SOURCES}
    worse = 0
    for source, asked in ({} if options.page else asked_of(cases, options.only)).items():
        for case in asked:
            run: Callable[[Case, Bench], Result] = importlib.import_module(f"benchmarks.real_cards.{source}").run
            before, now = results[source].get(case.name), outcome_of(case, bench, run)
            print(f"{source}/{case.name}: {now.status} {now.reason}".rstrip(), flush=True)
            worse += now.status is not Status.EQUAL and (before is None or before.status is Status.EQUAL)
            results[source][case.name] = now
            write_results(options.results / f"{source}.json", results[source], cases[source])
    if options.write:
        write_page(options.write, page_of(cases, results), part=options.page or bool(options.only))
    return 1 if worse else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--environments", type=Path, required=True, help="the folder of environments, as make setup has it"
    )
    parser.add_argument("--from", dest="pattern", default=os.environ.get("ULLAGE_REPOSITORIES", GITHUB))
    parser.add_argument("--only", default="", help="the case SOURCE/NAME, or all that have this in it")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="the folder of what was run before")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of what was run before")
    parser.add_argument("--write", type=Path)
    return parser.parse_args()


def asked_of(cases: Mapping[str, list[Case]], only: str) -> dict[str, list[Case]]:
    """Return the cases that a text asks for, by source: the one whose SOURCE/NAME it is, or all that have it in it."""
    names = {f"{source}/{case.name}" for source, some in cases.items() for case in some}
    wanted = {only} if only in names else {name for name in names if only in name}
    return {source: [case for case in some if f"{source}/{case.name}" in wanted] for source, some in cases.items()}


def outcome_of(case: Case, bench: Bench, run: Callable[[Case, Bench], Result]) -> Result:
    """Run a case; what stands in its way is a result that says so."""
    began = time.monotonic()
    try:
        found = run(case, bench)
    except (SourceError, RunError, UllageError) as error:
        found = Result(case=case.name, status=Status.NOT_RUN, reason=" ".join(str(error).split()))
    except Exception as error:  # other people's scripts print other things than expected; the rest is run all the same
        found = Result(case=case.name, status=Status.NOT_RUN, reason=f"{type(error).__name__}: {error}")
    return replace(
        found,
        seconds=round(time.monotonic() - began, 1),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={**bench.versions(case), **found.versions},
    )


def read_results(path: Path) -> dict[str, Result]:
    """Return what was run before, by the case's name."""
    found = json.loads(path.read_text()) if path.exists() else []
    return {entry["case"]: Result.of_json(entry) for entry in found}


def write_results(path: Path, results: dict[str, Result], cases: list[Case]) -> None:
    """Keep the results of the cases that there are, in their order, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [results[case.name] for case in cases if case.name in results]
    path.write_text("[\n" + ",\n".join(json.dumps(result.json) for result in kept) + "\n]\n")


if __name__ == "__main__":
    sys.exit(main())
