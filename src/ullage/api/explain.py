"""Why did this run out of memory, and what would have prevented it?"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.api.text import is_text, pieces_of
from ullage.api.values import ALL_DEVICES, capacity_of, check_device, check_page, check_tables, semantics_given
from ullage.base.errors import UsageError
from ullage.base.public import public

# What a snapshot alone needs not is loaded where it is needed: it takes as long as replaying a small one.
if TYPE_CHECKING:
    from ullage.explaining.analysis.assumption import Assumptions
    from ullage.explaining.analysis.explain import Explanation
    from ullage.explaining.analysis.text.explain import TextExplanation
    from ullage.explaining.fleet.fleet import FleetExplanation
    from ullage.recorded.history import History


@public
def explain(
    file: str | Path | BaseException,
    *,
    device: int | str | None = None,
    rank: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    html: str | Path | None = None,
    sql: str | Path | None = None,
    picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> "Explanation":
    """Say why a run ran out of memory, who held it, and which change is proved to let it through.

    Nothing of a file is run, and neither torch nor a GPU is needed.

    Args:
        file: a snapshot (`torch.cuda.memory._dump_snapshot`), a log or a text, gzip too; the folder of an
            `ullage run`; or the exception that was caught.
        device: which card of a snapshot: its number, or "all", which puts the other cards into `others`; None: the one
            that failed, or else the one that reserved most.
        rank: which rank's snapshot, where `file` is a folder with one of each rank (`explain_ranks` reads them all).
        capacity: what the allocator could reserve at most; bytes, or a text such as "10GiB".
        alloc_conf: the settings in force, where the snapshot does not have them.
        torch_version: the torch that recorded it, such as "2.12"; None: the nearest is taken.
        html: where to write a page with pictures.
        sql: where to write every card's events, blocks, segments and stacks as tables of SQLite.
        picture: keep what a page draws, for `ullage.write_page` later; `html` implies it.
        progress: called with a short text for every replay.

    Raises:
        SnapshotError: the file cannot be read as a snapshot.
        OSError: a file cannot be written; nothing of it is left.
        UsageError: an argument is not what is expected, or memory did not run out in that run.
    """
    options: dict[str, object] = {"device": device, "capacity": capacity, "alloc_conf": alloc_conf}
    options |= {"torch_version": torch_version, "sql": sql}
    if isinstance(file, BaseException):
        from ullage.explaining.analysis.text.explain import explain_messages
        from ullage.recorded.message.log import scan

        _refuse(options, "an exception's text")
        return explain_messages(scan([f"{type(file).__name__}: {file}"]), source=type(file).__name__).explanation
    path = _of_rank(Path(file), rank)
    check_page(html, path)
    check_tables(sql, path, *((html,) if html is not None else ()))
    if path.is_dir():
        _refuse(options, f"{path}, the folder of a run")
        _refuse_ranks(path)
        explanation = _explain_run(path, progress)
    elif is_text(path):
        _refuse(options, f"{path}, which is text")
        explanation = explain_text(path, progress).explanation
    else:
        explanation = _explain_snapshot(
            path,
            device=device,
            semantics=semantics_given(torch_version),
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_of(capacity),
            with_picture=picture or html is not None,
            tables=Path(sql) if sql is not None else None,
            progress=progress,
        )
    if html is not None:
        from ullage.api.show import write_page

        write_page(explanation, html)
    return explanation


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
    from ullage.explaining.fleet.fleet import engine_of, explain_fleet, folder_of_ranks

    path = Path(folder)
    check_page(html, path)
    files = folder_of_ranks(path) if path.is_dir() else ()
    if not files:
        raise UsageError(f"{path} is no folder with the snapshots of two ranks or more")
    with_picture = picture or html is not None
    with engine_of(on, workers) as engine:
        explanation = explain_fleet(
            path, files, workers=workers, engine=engine, with_picture=with_picture, progress=progress
        )
    if html is not None:
        from ullage.api.show import write_page

        write_page(explanation, html)
    return explanation


def _of_rank(path: Path, rank: int | None) -> Path:
    """Return the snapshot of a rank in a folder, or the path itself where no rank is asked for."""
    if rank is None:
        return path
    from ullage.explaining.fleet.fleet import file_of_rank, folder_of_ranks

    files = folder_of_ranks(path) if path.is_dir() else ()
    if not files:
        raise UsageError(f"a rank is chosen among the snapshots of a folder; {path} has none of two ranks or more")
    return file_of_rank(path, files, rank)


def _refuse_ranks(path: Path) -> None:
    """Raise UsageError where a folder has snapshots of several ranks, which have an answer of another kind."""
    from ullage.explaining.fleet.fleet import folder_of_ranks

    if files := folder_of_ranks(path):
        raise UsageError(
            f"{path} has the snapshots of {len(files):,} ranks: ullage.explain_ranks tells which differ, and rank=N "
            "explains one"
        )


def _refuse(options: Mapping[str, object], what: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} is for a snapshot, which can be replayed; it was given with {what}: leave it out")


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
    from ullage.running.supervision.verdict import explain_evidence, fatal_evidence, find_run

    run, _ = find_run(folder)
    evidence = fatal_evidence(run)
    explanation = explain_evidence(evidence, progress=progress) if evidence is not None else None
    if explanation is None:
        why = "memory did not run out" if evidence is None else f"{evidence.folder} has no snapshot"
        raise UsageError(f"the run {run.folder} has nothing to explain: {why}; see: ullage explain {run.folder}")
    return explanation
