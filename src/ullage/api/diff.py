"""What grew from one run to the other?"""

from collections.abc import Sequence
from pathlib import Path

from ullage.api.input import load_recorded
from ullage.api.values import check_page, history_of, semantics_given, with_page
from ullage.base.errors import UsageError, quoted
from ullage.base.public import public
from ullage.explaining.difference.difference import Difference, Moment, difference_of
from ullage.recorded.history import History


@public
def diff(
    before: str | Path,
    after: str | Path,
    *,
    at: str = "end",
    device: int | None = None,
    torch_version: str | None = None,
    html: str | Path | None = None,
) -> Difference:
    """Say what grew between two snapshots, by the user's source lines; in bytes and in blocks.

    Args:
        before: the first snapshot (`torch.cuda.memory._dump_snapshot`); gzip too.
        after: the second.
        at: "end": when they were taken; "peak": when each held most.
        device: which card's history; None: all cards are added up.
        torch_version: the torch that recorded them, such as "2.12".
        html: where to write a page.

    Raises:
        SnapshotError: a file cannot be read.
        UsageError: an argument is not what is expected.
    """
    if at not in (moments := [moment.value for moment in Moment]):
        raise UsageError(f"--at {quoted(at)} is not a moment of a snapshot; expected one of {', '.join(moments)}")
    check_page(html, before, after)
    semantics = semantics_given(torch_version)
    first, second = (_histories_of(Path(file), device) for file in (before, after))
    difference = difference_of(first, second, sources=(str(before), str(after)), moment=Moment(at), semantics=semantics)
    return with_page(difference, html)


def _histories_of(file: Path, device: int | None) -> Sequence[History]:
    """One card's history, or those of all."""
    return [history_of(file, device)] if device is not None else list(load_recorded(file).devices.values())
