"""`ullage.diff`: compare the memory of two snapshots."""

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
    """Compare two snapshots, and return what grew between them for each of the user's source lines, in bytes and
    blocks.

    Args:
        before: the first snapshot (from `torch.cuda.memory._dump_snapshot`); it may be packed with gzip.
        after: the second snapshot.
        at: the point in time to compare: "end", when the snapshots were taken, or "peak", when each run had the most
            memory allocated.
        device: the number of the GPU to compare; None: the sum over all GPUs.
        torch_version: the version of torch that recorded the snapshots, such as "2.12".
        html: the path of an HTML page to write.

    Returns:
        A `Difference`: the source lines with new, freed and moved memory.

    Raises:
        SnapshotError: a file cannot be read.
        UsageError: an argument is not valid.

    Example:
        >>> difference = ullage.diff("step_10.pickle", "step_20.pickle")
        >>> ullage.show(difference)
    """
    if at not in (moments := [moment.value for moment in Moment]):
        raise UsageError(f"at={quoted(at)} is not a point in time of a snapshot; expected one of {', '.join(moments)}")
    check_page(html, before, after)
    semantics = semantics_given(torch_version)
    first, second = (_histories_of(Path(file), device) for file in (before, after))
    difference = difference_of(first, second, sources=(str(before), str(after)), moment=Moment(at), semantics=semantics)
    return with_page(difference, html)


def _histories_of(file: Path, device: int | None) -> Sequence[History]:
    return [history_of(file, device)] if device is not None else list(load_recorded(file).devices.values())
