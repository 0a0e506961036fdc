"""Which allocator settings suit this run?"""

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
    """Search the settings of PyTorch's allocator by replaying a recorded run.

    Args:
        file: a snapshot (`torch.cuda.memory._dump_snapshot`); gzip too.
        device: which card's history; None: the one that failed or reserved most.
        capacity: what the allocator may reserve at most; bytes, or a text such as "10GiB".
        alloc_conf: the settings in force, where the snapshot does not have them.
        torch_version: the torch that recorded it, such as "2.12"; None: the nearest is taken.
        budget: seconds to search.
        html: where to write a page with pictures.
        progress: called with a short text as the search goes on.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: an argument is not what is expected, or the run had another allocator.
    """
    if not 0 < budget < 1e6:
        raise UsageError(f"--budget {budget:g} is not a time to search; expected seconds above 0, such as 20")
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
