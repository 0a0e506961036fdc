"""Snapshots that others recorded on real cards, and the same script's own snapshot on the emulated card.

A published snapshot is read as data (`ullage.recorded.snapshot`). Its script is started unmodified, or by a driver of
`drivers/` where its folder, its data or its card has to be given first; either way the script's own call writes the
emulated snapshot. The cases are in `recordings.toml`:

* `driver`: a file of `drivers/`, or `script`: one of the repository's own; `arguments` follow it;
* `python_path`: folders that are imported from; {0} is the folder of the first origin, {1} of the second;
* `run_in`: the folder that it is started in; `makes`: folders that it expects; `writes`: the snapshot it leaves;
* `shared`: cases with the same one are recordings of one process, which is run once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.real_cards.bench import Bench, Ended, RunError
from benchmarks.real_cards.case import HERE, Case, Result
from benchmarks.real_cards.compare import compared
from benchmarks.real_cards.facts import history_of

_ENDED: Final[dict[str, Ended]] = {}


def run(case: Case, bench: Bench) -> Result:
    """Run the script of a recording, and compare what it recorded."""
    published = bench.published(case)
    folders = [bench.files(origin) for origin in case.origins]
    given = case.parameters
    ended = _ended(case, bench, folders)
    written = ended.folder / given["writes"]
    if not written.is_file():
        raise RunError(f"the script ended without writing {given['writes']}")
    found = compared(history_of(published), history_of(written))
    return Result.judged(
        case=case.name,
        reason=found.differs,
        figures=found.figures,
        events=found.events,
        segments=found.segments,
        places=found.places,
    )


def _ended(case: Case, bench: Bench, folders: list[Path]) -> Ended:
    """Run the script of a case, or return what the process that it shares has left."""
    given = case.parameters
    shared = given.get("shared", case.name)
    if shared in _ENDED:
        return _ENDED[shared]
    script = HERE / "drivers" / given["driver"] if "driver" in given else folders[0] / given["script"]
    _ENDED[shared] = bench.run(
        replace(case, name=shared),
        script,
        [str(argument).format(*folders) for argument in given.get("arguments", ())],
        python_path=[Path(path.format(*folders)) for path in given.get("python_path", ())],
        folder=given.get("run_in", "."),
        makes=given.get("makes", ()),
    ).checked()
    return _ENDED[shared]
