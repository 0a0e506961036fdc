"""`ullage.explain`: find out why a run ran out of memory, and which change would have prevented it."""

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
from ullage.base.units import text_of_bytes

# Modules that a single snapshot does not need are imported only where they are used: importing them takes as long as
# replaying a small snapshot.
if TYPE_CHECKING:
    from ullage.explaining.analysis.assumption import Assumptions
    from ullage.explaining.analysis.explain import Explanation
    from ullage.explaining.analysis.text.explain import TextExplanation
    from ullage.explaining.fleet.fleet import FleetExplanation
    from ullage.explaining.fleet.rank_files import RankFile
    from ullage.recorded.history import History
    from ullage.running.run_files.folder import RunFolder

_MOST_TIMELINE_BYTES = 256 << 20


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
    """Find out why a run ran out of memory, which code held the memory, and which change is proved to avoid the error.

    No code in the file is executed, and neither torch nor a GPU is needed. `ullage.show` prints the answer as the
    command does.

    Args:
        file: one of: a snapshot (from `torch.cuda.memory._dump_snapshot`), a log, an error's text, or a memory
            timeline of PyTorch's profiler, which may be packed with gzip; the folder of an `ullage run`, or a folder of
            several runs, of which the newest is explained; a folder with one snapshot of each rank; "-" for standard
            input; an exception that was caught.
        device: the GPU in a snapshot to explain: its number, or "all", which puts all but one into `others`. None: the
            GPU that failed, or else the one that reserved the most memory.
        rank: the rank whose snapshot to explain, if `file` is a folder with one of each rank; None: all ranks.
        on: where to read such a folder, as in `ullage.fit_layout`: None or "local", "ray", "ray://HOST:PORT", "slurm"
            or "submitit-local". All workers need the same paths.
        workers: the number of processes that read such a folder at once; None: one for each CPU core.
        capacity: the most memory that the allocator could reserve; bytes, or a text such as "10GiB".
        alloc_conf: the allocator settings of the run, if the snapshot does not contain them.
        torch_version: the version of torch that recorded it, such as "2.12"; None: the version that fits best.
        html: the path of an HTML page with charts to write.
        sql: the path of an SQLite file to write, with tables of every GPU's events, blocks, segments and stack frames.
        picture: whether to keep the data of the page's charts, for `ullage.write_page` later; `html` implies it.
        progress: a function that is called with a short text for every replay.

    Returns:
        A `FleetExplanation` for a folder of ranks if `rank` is None; otherwise an `Explanation`. For a run that did
        not run out of memory its cause is "did_not_fail", and `run` has the summary of the run.

    Raises:
        SnapshotError: the file cannot be read as a snapshot.
        OSError: an output file cannot be written; a partial file is removed.
        UsageError: an argument is not valid, or a text does not contain an out-of-memory error.

    Example:
        >>> explanation = ullage.explain("oom.pickle")
        >>> print(explanation.cause, explanation.sentence)
        >>> ullage.show(explanation)
    """
    options: dict[str, object] = {"device": device, "capacity": capacity, "alloc_conf": alloc_conf}
    options |= {"torch_version": torch_version, "sql": sql}
    with_picture = picture or html is not None
    if isinstance(file, BaseException):
        from ullage.explaining.analysis.text.explain import explain_text as explain_words

        name = type(file).__name__
        _refuse(options, "which can be replayed; the input is an exception's text, so leave the option out")
        return with_page(explain_words(f"{name}: {file}", source=name), html)
    path = Path(file) if rank is None else _of_rank(Path(file), rank)
    check_page(html, path)
    check_tables(sql, path, *((html,) if html is not None else ()))
    found = input_of(path)
    answer: Explanation | FleetExplanation
    match found.kind:
        case InputKind.RANKS:
            _refuse(options, f"and {path} is a folder with {len(found.ranks):,} ranks; give rank= too")
            answer = _explain_ranks(
                path, found.ranks, on=on, workers=workers, with_picture=with_picture, progress=progress
            )
        case InputKind.RUN:
            _refuse(options, "and the folder of a run already contains it; leave the option out")
            answer = _explain_run(path, progress)
        case InputKind.TEXT | InputKind.STANDARD_INPUT:
            _refuse(options, f"which can be replayed; {path} is text, so leave the option out")
            answer = explain_text(path, progress)
        case InputKind.TIMELINE:
            _refuse(options, f"which can be replayed; {path} is {found.kind.value}, so leave the option out")
            answer = _explain_timeline(path)
        case InputKind.SNAPSHOT | InputKind.ARCHIVE:
            with without_collections():  # for a large file, garbage collection would take a twentieth of the time
                answer = _explain_pickle(
                    path,
                    lambda: _explain_snapshot(
                        path,
                        device=device,
                        semantics=semantics_given(torch_version),
                        alloc_conf=alloc_conf,
                        capacity_bytes=capacity_of(capacity),
                        with_picture=with_picture,
                        tables=Path(sql) if sql is not None else None,
                        progress=progress,
                    ),
                )
    return with_page(answer, html)


def explain_text(path: Path, progress: Callable[[str], None]) -> "TextExplanation":
    """Explain a log or the text of an error. The path "-" means standard input.

    Raises:
        UsageError: the file cannot be read, or does not contain an out-of-memory error.
    """
    from ullage.explaining.analysis.text.explain import explain_messages
    from ullage.recorded.message.log import scan

    source = "standard input" if str(path) == "-" else str(path)
    return explain_messages(scan(pieces_of(path, progress)), source=source)


def _explain_timeline(path: Path) -> "Explanation":
    from ullage.api.input import opened
    from ullage.explaining.analysis.timeline import explain_timeline
    from ullage.recorded.timeline import timeline_of

    with opened(path) as source:
        content = source.read(_MOST_TIMELINE_BYTES + 1)
    if len(content) > _MOST_TIMELINE_BYTES:
        raise UsageError(f"{path} has more than {text_of_bytes(_MOST_TIMELINE_BYTES)}; profile fewer steps")
    try:
        return explain_timeline(timeline_of(content), source=str(path))
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as a memory timeline of PyTorch's profiler: {error}") from None


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
    """Compare the snapshots of many ranks: which ranks are alike, how the others differ, and why the fullest rank
    differs.

    It does the same as `ullage.explain` for such a folder, but always returns a `FleetExplanation`.

    Args:
        folder: the folder with one snapshot of each rank, under any of the usual names (docs/fleets.md).
        on: where to read the folder, as in `ullage.fit_layout`: None or "local", "ray", "ray://HOST:PORT", "slurm" or
            "submitit-local". All workers need the same paths.
        workers: the number of processes that read at once; None: one for each CPU core.
        html: the path of an HTML page with charts to write.
        picture: whether to keep the data of the charts of the fullest rank; `html` implies it.
        progress: a function that is called with a short text from time to time.

    Returns:
        A `FleetExplanation`: the groups of similar ranks, their differences, and the explanation of the fullest rank.

    Raises:
        UsageError: the folder does not contain snapshots of two or more ranks, or none of them can be read.
        OSError: the page cannot be written; a partial file is removed.

    Example:
        >>> fleet = ullage.explain_ranks("snapshots/", workers=8)
        >>> ullage.show(fleet)
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
    from ullage.explaining.fleet.fleet import file_of_rank

    return file_of_rank(folder, _ranks_in(folder, "rank= selects one of the snapshots in a folder"), rank)


def _ranks_in(folder: Path, why: str) -> "tuple[RankFile, ...]":
    found = input_of(folder).ranks if folder.is_dir() else ()
    if not found:
        raise UsageError(f"{why}; {folder} is not a folder with the snapshots of two or more ranks")
    return found


def _refuse(options: Mapping[str, object], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]}= is for a snapshot, {why}")


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
    if with_picture and device == ALL_DEVICES:
        raise UsageError("a page shows one GPU, but device='all' selects all of them; give the number of one GPU")
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
        found[number] = replace(nearest, rebuilder=None, recording=None)  # they hold the data of the whole run
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

        progress("writing the SQLite tables")
        write_database(
            tables,
            snapshot.devices,
            {number: assumed(number, history_of(number)) for number in snapshot.devices},
            semantics=semantics,
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_bytes,
        )
    return explanation


def _explain_pickle(path: Path, explain_snapshot: "Callable[[], Explanation]") -> "Explanation":
    """Explain a snapshot, or a pickle of `torch.cuda.memory_stats()`."""
    from ullage.recorded.snapshot.snapshot import NoSnapshotError

    try:
        return explain_snapshot()
    except NoSnapshotError as error:
        from ullage.explaining.analysis.text.explain import explain_printed
        from ullage.recorded.message.printed_memory import statistics_of

        figures = statistics_of(error.content) if isinstance(error.content, Mapping) else None
        if figures is None:
            raise
        return explain_printed([figures], source=str(path))


def _of_host_memory(run: "RunFolder", beside: int) -> "Explanation | None":
    """Explain the error of host memory that ended a process of a run, or return None."""
    from ullage.explaining.analysis.explain import RunSummary
    from ullage.explaining.analysis.text.explain import explain_text as explain_words
    from ullage.running.supervision.summary import summary_of

    error = next((process.facts.error for process in run.processes if process.facts.error), None)
    if error is None:
        return None
    summary = RunSummary(name=run.folder.name, evidence=None, summary=tuple(summary_of(run)), remarks=(), beside=beside)
    try:
        return replace(explain_words(error, source=str(run.folder)), run=summary)
    except UsageError:
        return None


def _explain_run(folder: Path, progress: Callable[[str], None]) -> "Explanation":
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
    if (of_host := _of_host_memory(run, beside)) is not None:
        return of_host
    ends = {process.facts.state for process in run.processes}
    grows = any(process.facts.growth for process in run.processes)
    did_not_end = "STILL RUNNING, OR KILLED" if "runs" in ends else "NO OUT-OF-MEMORY ERROR"
    why = (
        "memory did not run out"
        if evidence is None
        else f"memory ran out, but {evidence.folder} does not contain a snapshot"
    )
    return Explanation(
        source=str(run.folder),
        cause=Cause.DID_NOT_FAIL if evidence is None else Cause.CANNOT_TELL,
        headline="MEMORY GROWS" if grows else did_not_end,
        sentence=f"In this run {why}.",
        evidence={},
        run=RunSummary(name=run.folder.name, evidence=None, summary=tuple(summary_of(run)), remarks=(), beside=beside),
    )
