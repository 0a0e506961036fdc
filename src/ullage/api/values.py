"""Values of options, as a command or a call gives them: the run that is asked for, sizes, pages, the recording."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ullage.base.errors import UsageError, quoted, shortened
from ullage.base.option import options_of
from ullage.base.output import check_output
from ullage.base.units import is_size, parse_bytes, size_of
from ullage.recorded.settings import semantics_of

if TYPE_CHECKING:
    from ullage.predicting.prediction.request import Request
    from ullage.recorded.history import History
    from ullage.recorded.snapshot.snapshot import Snapshot

Answer = TypeVar("Answer")

_LARGEST_BYTES: Final = 1 << 50
ALL_DEVICES: Final = "all"
"""The value of --device that stands for every card of a snapshot."""


def request_of(
    script: str | Path, arguments: Sequence[str], options: Mapping[str, object], *, picture: bool = False
) -> "Request":
    """Return what to run, on which GPU and for how long; options of the question that no run has are left out.

    Raises:
        UsageError: an option is not what is expected.
    """
    from ullage.options import RunOptions  # what runs a script is not for those who ask other commands
    from ullage.predicting.prediction.request import Request

    if isinstance(arguments, str):
        raise TypeError(f"the arguments are a list of words, not {shortened(repr(arguments))}: use shlex.split")
    chosen: dict[str, Any] = {name: options[name] for name in options_of(RunOptions) if name in options}
    return Request.of(script, arguments, picture=picture, **chosen)


def margin_of(margin: int | str, total_bytes: int) -> int:
    """Return `--margin` in bytes: of a card's memory, or as it is.

    Raises:
        UsageError: it is no part of it.
    """
    if isinstance(margin, int):
        if margin < 0:
            raise UsageError(f"--margin {margin} is negative; expected bytes, a percentage such as 5%, or 1GiB")
        return margin
    if is_size(margin):
        return parse_bytes(margin)
    number = margin.strip().removesuffix("%")
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0
    if not margin.strip().endswith("%") or not 0 <= percent < 100:
        raise UsageError(
            f"--margin {quoted(margin)} is not a part of a card's memory; expected a percentage such as 5%, or 1GiB"
        )
    return int(total_bytes * percent / 100)


def check_page(page: str | Path | None, *inputs: str | Path) -> None:
    """Raise UsageError where the page of --html cannot be written, or would overwrite what is read."""
    if page is not None:
        check_output("--html", Path(page), inputs=tuple(Path(path) for path in inputs))


def with_page(answer: Answer, html: str | Path | None) -> Answer:
    """Write the page of an answer where it is asked for, and return the answer."""
    if html is not None:
        from ullage.api.show import write_page

        write_page(answer, html)
    return answer


def check_tables(tables: str | Path | None, *inputs: str | Path) -> None:
    """Raise UsageError where the tables of --sql cannot be written, or would overwrite what is read or written."""
    if tables is not None:
        check_output("--sql", Path(tables), inputs=tuple(Path(path) for path in inputs))


def semantics_given(torch_version: str | None) -> str | None:
    """Return which allocator `--torch-version` names; None where it was not given.

    Raises:
        SettingsError: the text is no version.
    """
    return semantics_of(torch_version) if torch_version is not None else None


def capacity_of(size: int | str | None) -> int | None:
    """Return `--capacity` in bytes.

    Raises:
        UsageError: it is no size, or none that a card has.
    """
    capacity = size_of(size, "--capacity")
    if capacity is not None and not 0 < capacity <= _LARGEST_BYTES:
        raise UsageError(
            f"--capacity {shortened(size)} is not a card's memory; expected a size such as 10GiB, up to "
            f"{_LARGEST_BYTES >> 40} TiB"
        )
    return capacity


def history_of(file: Path, device: int | None) -> "History":
    """Load a snapshot and return the history of one card: of `device`, or of the one that failed or reserved most.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: the snapshot has no such card.
    """
    from ullage.api.input import load_recorded
    from ullage.explaining.analysis.card import (  # numpy is not for those who ask other commands
        card_to_explain,
        recorded_cards,
    )

    snapshot = load_recorded(file)
    chosen = card_to_explain(recorded_cards(snapshot.devices)) if device is None else device
    return snapshot.devices[check_device(chosen, snapshot)]


def check_device(device: int | str | None, snapshot: "Snapshot", *, takes_all: bool = False) -> int:
    """Return the number of a card that a snapshot has; a text may hold it. `takes_all` is whether "all" is allowed too.

    Raises:
        UsageError: it is no number, or the snapshot has no such card.
    """
    try:
        number = int(device if device is not None else "")
    except ValueError:
        number = -1
    if number not in snapshot.devices:
        known = ", ".join([*map(str, snapshot.devices), *([f"or {ALL_DEVICES}"] if takes_all else [])])
        raise UsageError(f"--device {device} has no history in {snapshot.path}; expected one of {known}")
    return number
