"""Convert and check the options that users pass to ullage, such as sizes, GPU numbers and output paths."""

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
"""The value "all" of the option `device`, which selects every GPU in a snapshot."""


def request_of(
    script: str | Path, arguments: Sequence[str], options: Mapping[str, object], *, picture: bool = False
) -> "Request":
    """Return a request to run the user's script, made from the options that describe the run.

    Raises:
        UsageError: the value of an option is not valid.
    """
    from ullage.options import RunOptions  # imported only here, because other functions do not need it
    from ullage.predicting.prediction.request import Request

    if isinstance(arguments, str):
        raise TypeError(f"arguments= is a list of strings, not {shortened(repr(arguments))}: use shlex.split")
    chosen: dict[str, Any] = {name: options[name] for name in options_of(RunOptions) if name in options}
    return Request.of(script, arguments, picture=picture, **chosen)


def margin_of(margin: int | str, total_bytes: int) -> int:
    """Convert the option `margin` to bytes. It may be a number, a size such as "1GiB", or a percentage of the GPU's
    memory.

    Raises:
        UsageError: the margin is negative, or is not a size or a percentage below 100.
    """
    if isinstance(margin, int):
        if margin < 0:
            raise UsageError(f"margin={margin} is negative; expected bytes, a percentage such as 5%, or 1GiB")
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
            f"margin={quoted(margin)} is not a part of a GPU's memory; expected a percentage such as 5%, or 1GiB"
        )
    return int(total_bytes * percent / 100)


def check_page(page: str | Path | None, *inputs: str | Path) -> None:
    """Raise UsageError if the HTML page cannot be written, or would overwrite an input file."""
    if page is not None:
        check_output("html", Path(page), inputs=tuple(Path(path) for path in inputs))


def with_page(answer: Answer, html: str | Path | None) -> Answer:
    """Write the HTML page of a result if the option `html` is set, and return the result."""
    if html is not None:
        from ullage.api.show import write_page

        write_page(answer, html)
    return answer


def check_tables(tables: str | Path | None, *inputs: str | Path) -> None:
    """Raise UsageError if the SQLite file cannot be written, or would overwrite another file."""
    if tables is not None:
        check_output("sql", Path(tables), inputs=tuple(Path(path) for path in inputs))


def semantics_given(torch_version: str | None) -> str | None:
    """Return the PyTorch version whose allocator is emulated, or None if the user did not set `torch_version`.

    Raises:
        SettingsError: the text is not a version.
    """
    return semantics_of(torch_version) if torch_version is not None else None


def capacity_of(size: int | str | None) -> int | None:
    """Convert the option `capacity` to bytes.

    Raises:
        UsageError: the text is not a size, or no GPU can have a memory of this size.
    """
    capacity = size_of(size, "capacity")
    if capacity is not None and not 0 < capacity <= _LARGEST_BYTES:
        raise UsageError(
            f"capacity={shortened(size)} is not the memory of a GPU; expected a size such as 10GiB, up to "
            f"{_LARGEST_BYTES >> 40} TiB"
        )
    return capacity


def history_of(file: Path, device: int | None) -> "History":
    """Load a snapshot and return the allocation history of one GPU.

    The default is the GPU that ran out of memory. If none did, it is the GPU that reserved the most memory.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: the snapshot does not contain that GPU.
    """
    from ullage.api.input import load_recorded
    from ullage.explaining.analysis.card import (  # imported only here, because other functions do not need numpy
        card_to_explain,
        recorded_cards,
    )

    snapshot = load_recorded(file)
    chosen = card_to_explain(recorded_cards(snapshot.devices)) if device is None else device
    return snapshot.devices[check_device(chosen, snapshot)]


def check_device(device: int | str | None, snapshot: "Snapshot", *, takes_all: bool = False) -> int:
    """Check a GPU number from the user, and return it as an int.

    Args:
        device: the number of the GPU.
        snapshot: the snapshot, which must contain that GPU.
        takes_all: whether "all" is allowed too, for the error message.

    Raises:
        UsageError: the text is not a number, or the snapshot does not contain that GPU.
    """
    try:
        number = int(device if device is not None else "")
    except ValueError:
        number = -1
    if number not in snapshot.devices:
        known = ", ".join([*map(str, snapshot.devices), *([f"or {ALL_DEVICES}"] if takes_all else [])])
        raise UsageError(f"device={device} does not have a history in {snapshot.path}; expected one of {known}")
    return number
