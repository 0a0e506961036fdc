"""Why did this run out of memory, and what would have prevented it?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from ullage.api.input import InputKind, input_of, pieces_of
from ullage.api.values import (
    ALL_DEVICES,
    capacity_of,
    check_device,
    check_page,
    check_tables,
    semantics_given,
    with_page,
)
from ullage.base.errors import UsageError
from ullage.base.garbage_collector import without_collections
from ullage.base.public import public

# What a snapshot alone needs not is loaded where it is needed: it takes as long as replaying a small one.
if TYPE_CHECKING:
    from ullage.explaining.analysis.assumption import Assumptions
    from ullage.explaining.analysis.explain import Explanation
    from ullage.explaining.analysis.text.explain import TextExplanation
    from ullage.explaining.fleet.fleet import FleetExplanation
    from ullage.explaining.fleet.rank_files import RankFile
    from ullage.recorded.history import History


@overload
def explain(
    file: BaseException,
    *,
    html: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = ...,
) -> "Explanation": ...


@overload
def explain(
    file: str | Path,
    *,
    device: int | str | None = None,
    rank: int,
    on: str | None = None,
    workers: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    html: str | Path | None = None,
    sql: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = ...,
) -> "Explanation": ...


@overload
def explain(
    file: str | Path | BaseException,
    *,
    device: int | str | None = None,
    rank: int | None = None,
    on: str | None = None,
    workers: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    html: str | Path | None = None,
    sql: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = ...,
) -> "Explanation | FleetExplanation": ...


@public
def explain(
    file: str | Path | BaseException,
    *,
    device: int | str | None = None,
    rank: int | None = None,
    on: str | None = None,
    workers: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    html: str | Path | None = None,
    sql: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> "Explanation | FleetExplanation":
    """Say why a run ran out of memory, who held it, and which change is proved to let it through.

    Nothing of a file is run, and neither torch nor a GPU is needed. `ullage.show` prints the answer as the command
    does.

    Args:
        file: a snapshot (`torch.cuda.memory._dump_snapshot`), a log or a text, gzip too; the folder of an
            `ullage run`, or of several, of which the newest is taken; a folder with a snapshot of each rank; "-" for
            standard input; or the exception that was caught.
        device: which card of a snapshot: its number, or "all", which puts the other cards into `others`; None: the one
            that failed, or else the one that reserved most.
        rank: which rank's snapshot, where `file` is a folder with one of each rank; None: all of them.
        on: where to read such a folder: None or "local", "ray", "ray://HOST:PORT", "slurm" or "submitit-local", as of
            `ullage.fit`; whoever reads has to see the same paths.
        workers: how many processes read such a folder at once; None: one for each core.
        capacity: what the allocator could reserve at most; bytes, or a text such as "10GiB".
        alloc_conf: the settings in force, where the snapshot does not have them.
        torch_version: the torch that recorded it, such as "2.12"; None: the nearest is taken.
        html: where to write a page with pictures.
        sql: where to write every card's events, blocks, segments and stacks as tables of SQLite.
        picture: keep what a page draws, for `ullage.write_page` later; `html` implies it.
        progress: called with a short text for every replay.

    Returns:
        A `FleetExplanation` for a folder of ranks where no rank is chosen, and an `Explanation` for everything else; of
        a run in which memory did not run out its cause is "did_not_fail", and `run` has its summary.

    Raises:
        SnapshotError: the file cannot be read as a snapshot.
        OSError: a file cannot be written; nothing of it is left.
        UsageError: an argument is not what is expected, or a text has no error of memory.
    """
    options: dict[str, object] = {"device": device, "capacity": capacity, "alloc_conf": alloc_conf}
    options |= {"torch_version": torch_version, "sql": sql}
    with_picture = picture or html is not None
    if isinstance(file, BaseException):
        from ullage.explaining.analysis.text.explain import explain_text as explain_words

        name = type(file).__name__
        _refuse(options, "which can be replayed; it was given with an exception's text: leave it out")
        return with_page(explain_words(f"{name}: {file}", source=name), html)
    path = Path(file) if rank is None else _of_rank(Path(file), rank)
    check_page(html, path)
    check_tables(sql, path, *((html,) if html is not None else ()))
    found = input_of(path)
    answer: Explanation | FleetExplanation
    match found.kind:
        case InputKind.RANKS:
            _refuse(options, f"and {path} has those of {len(found.ranks):,} ranks: add --rank N")
            answer = _explain_ranks(
                path, found.ranks, on=on, workers=workers, with_picture=with_picture, progress=progress
            )
        case InputKind.RUN:
            _refuse(options, "and the folder of a run has it recorded: leave it out")
            answer = _explain_run(path, progress)
        case InputKind.TEXT | InputKind.STANDARD_INPUT:
            _refuse(options, f"which can be replayed; {path} is text: leave it out")
            answer = explain_text(path, progress)
        case InputKind.SNAPSHOT | InputKind.ARCHIVE:
            with without_collections():  # of a large file the search for cycles is a twentieth of the time
                answer = _explain_snapshot(
                    path,
                    device=device,
                    semantics=semantics_given(torch_version),
                    alloc_conf=alloc_conf,
                    capacity_bytes=capacity_of(capacity),
                    with_picture=with_picture,
                    tables=Path(sql) if sql is not None else None,
                    progress=progress,
                )
    return with_page(answer, html)


def explain_text(path: Path, progress: Callable[[str], None]) -> "TextExplanation":
    """Explain a log or an error's text; "-" is standard input.

    Raises:
        UsageError: the file cannot be read, or has no error of memory.
    """
    from ullage.explaining.analysis.text.explain import explain_messages
    from ullage.recorded.message.log import scan

    source = "standard input" if str(path) == "-" else str(path)
    return explain_messages(scan(pieces_of(path, progress)), source=source)


@public
def explain_ranks(
    folder: str | Path,
    *,
    on: str | None = None,
    workers: int | None = None,
    html: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> "FleetExplanation":
    """Read the snapshots of many ranks, and tell which are alike, which differ and by what, and why the fullest did.

    It is `ullage.explain` of such a folder, with an answer of one type.

    Args:
        folder: it has a snapshot of each rank, by any of the usual names (docs/fleets.md).
        on: where to read: None or "local", "ray", "ray://HOST:PORT", "slurm" or "submitit-local", as of `ullage.fit`;
            whoever reads has to see the same paths.
        workers: how many processes read at once; None: one for each core.
        html: where to write a page with pictures.
        picture: keep what a page draws of the fullest rank; `html` implies it.
        progress: called with a short text now and then.

    Raises:
        UsageError: it is no folder with the snapshots of two ranks or more, or none can be read.
        OSError: a file cannot be written; nothing of it is left.
    """
    path = Path(folder)
    check_page(html, path)
    files = _ranks_in(path, "a folder of ranks is expected")
    with_picture = picture or html is not None
    answer = _explain_ranks(path, files, on=on, workers=workers, with_picture=with_picture, progress=progress)
    return with_page(answer, html)


def _explain_ranks(
    folder: Path,
    files: "Sequence[RankFile]",
    *,
    on: str | None,
    workers: int | None,
    with_picture: bool,
    progress: Callable[[str], None],
) -> "FleetExplanation":
    from ullage.explaining.fleet.fleet import engine_of, explain_fleet

    with engine_of(on, workers) as engine:
        return explain_fleet(
            folder, files, workers=workers, engine=engine, with_picture=with_picture, progress=progress
        )


def _of_rank(folder: Path, rank: int) -> Path:
    """Return the snapshot of a rank in a folder."""
    from ullage.explaining.fleet.fleet import file_of_rank

    return file_of_rank(folder, _ranks_in(folder, "a rank is chosen among the snapshots of a folder"), rank)


def _ranks_in(folder: Path, why: str) -> "tuple[RankFile, ...]":
    found = input_of(folder).ranks if folder.is_dir() else ()
    if not found:
        raise UsageError(f"{why}; {folder} is no folder with the snapshots of two ranks or more")
    return found


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError where an option of one snapshot is given with an input of another kind."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} is for a snapshot, {why}")


def _explain_snapshot(
    path: Path,
    *,
    device: int | str | None,
    semantics: str | None,
    alloc_conf: str | None,
    capacity_bytes: int | None,
    with_picture: bool,
    tables: Path | None,
    progress: Callable[[str], None],
) -> "Explanation":
    """Explain a card of a snapshot, or every one, and write the tables of all of them where they are asked for."""
    if with_picture and device == ALL_DEVICES:
        raise UsageError("a page draws one card, and device all asks for every one: give the number of one")
    from ullage.explaining.analysis.assumption import closest
    from ullage.explaining.analysis.card import card_to_explain, recorded_cards
    from ullage.explaining.analysis.explain import explain as explain_history
    from ullage.recorded.snapshot.snapshot import load_snapshot

    snapshot = load_snapshot(path)
    cards = recorded_cards(snapshot.devices)
    first = card_to_explain(cards) if device in (None, ALL_DEVICES) else check_device(device, snapshot, takes_all=True)

    found: dict[int, Assumptions] = {}

    def history_of(number: int) -> "History":
        history = snapshot.devices[number]
        return history if history.has_requests else history.without_trace()

    def assumed(number: int, history: "History") -> "Assumptions":
        if number in found:
            return found[number]
        nearest = closest(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
        found[number] = replace(nearest, rebuilder=None, recording=None)  # which hold a whole program
        return nearest

    def explain_card(number: int) -> "Explanation":
        history = history_of(number)
        return explain_history(
            history,
            source=str(path),
            semantics=semantics,
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_bytes,
            assumed=assumed(number, history),
            cards=cards,
            with_picture=with_picture,
            progress=progress,
        )

    explanation = explain_card(first)
    if device == ALL_DEVICES:
        others = tuple(explain_card(card.device) for card in cards if card.device != first)
        explanation = replace(explanation, others=others)
    if tables is not None:
        from ullage.running.export.database import write_database

        progress("writing the tables")
        write_database(
            tables,
            snapshot.devices,
            {number: assumed(number, history_of(number)) for number in snapshot.devices},
            semantics=semantics,
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_bytes,
        )
    return explanation


def _explain_run(folder: Path, progress: Callable[[str], None]) -> "Explanation":
    """Explain a recorded run: why memory ran out, on which rank, and how that rank differs from the others."""
    from ullage.explaining.analysis.cause import Cause
    from ullage.explaining.analysis.explain import Explanation, RunSummary
    from ullage.running.supervision.summary import summary_of
    from ullage.running.supervision.verdict import explain_evidence, fatal_evidence, find_run, with_run

    run, beside = find_run(folder)
    if beside > 1:
        progress(f"reading {run.folder.name}, the newest of {beside} runs")
    evidence = fatal_evidence(run)
    explanation = explain_evidence(evidence, progress=progress) if evidence is not None else None
    if evidence is not None and explanation is not None:
        return with_run(explanation, run, evidence, beside=beside)
    ends = {process.facts.state for process in run.processes}
    grows = any(process.facts.growth for process in run.processes)
    did_not_end = "NOT ENDED, OR KILLED" if "runs" in ends else "DID NOT RUN OUT"
    why = "memory did not run out" if evidence is None else f"memory ran out, {evidence.folder} has no snapshot"
    return Explanation(
        source=str(run.folder),
        cause=Cause.DID_NOT_FAIL if evidence is None else Cause.CANNOT_TELL,
        headline="GROWS" if grows else did_not_end,
        sentence=f"In this run {why}.",
        evidence={},
        run=RunSummary(name=run.folder.name, evidence=None, summary=tuple(summary_of(run)), remarks=(), beside=beside),
    )
