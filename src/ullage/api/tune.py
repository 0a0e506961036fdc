"""`ullage.tune`: find the allocator settings that suit a recorded run."""

from collections.abc import Callable
from pathlib import Path

from ullage.api.values import capacity_of, check_page, history_of, with_page
from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.explaining.tuning.tune import Tuning
from ullage.explaining.tuning.tune import tune as tune_history


@public
def tune(
    file: str | Path,
    *,
    device: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    budget: float = 20.0,
    html: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Find the settings of PyTorch's allocator that suit a run best, by replaying its recording under each setting.

    Args:
        file: a snapshot (from `torch.cuda.memory._dump_snapshot`); it may be packed with gzip.
        device: the number of the GPU; None: the one that failed or reserved the most memory.
        capacity: the most memory that the allocator may reserve; bytes, or a text such as "10GiB".
        alloc_conf: the allocator settings of the run, if the snapshot does not contain them.
        torch_version: the version of torch that recorded it, such as "2.12"; None: the version that fits best.
        budget: the time limit for the search, in seconds.
        html: the path of an HTML page with charts to write.
        progress: a function that is called with a short text whenever the search advances.

    Returns:
        A `Tuning`: the best settings, and for each of them the reserved memory and the driver calls.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: an argument is not valid, or the run used another allocator.

    Example:
        >>> tuning = ullage.tune("snapshot.pickle", capacity="10GiB")
        >>> ullage.show(tuning)
    """
    if not 0 < budget < 1e6:
        raise UsageError(f"budget={budget:g} is not a time limit; expected seconds above 0, such as 20")
    capacity_bytes = capacity_of(capacity)
    path = Path(file)
    check_page(html, path)
    tuning = tune_history(
        history_of(path, device),
        source=str(path),
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        capacity_bytes=capacity_bytes,
        budget_seconds=budget,
        progress=progress,
    )
    return with_page(tuning, html)
