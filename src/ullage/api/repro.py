"""`ullage.repro`: reproduce an out-of-memory error by a script of a few lines."""

from collections.abc import Callable
from pathlib import Path

from ullage.api.values import capacity_of, history_of, semantics_given
from ullage.base.errors import UsageError
from ullage.base.output import check_output
from ullage.base.own_files import write_whole
from ullage.base.public import public
from ullage.explaining.reproduction.reproduction import Reproduction, reproduce
from ullage.explaining.reproduction.transcript import script_of


@public
def repro(
    file: str | Path,
    output: str | Path,
    *,
    device: int | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    budget: float = 30.0,
    keep_sizes: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Write a script of a few lines that runs out of memory in the same way as a recorded run.

    Args:
        file: a snapshot (from `torch.cuda.memory._dump_snapshot`); it may be packed with gzip.
        output: the path of the script to write.
        device: the number of the GPU; None: the one that failed or reserved the most memory.
        capacity: the most memory that the allocator could reserve; bytes, or a text such as "10GiB".
        alloc_conf: the allocator settings of the run, if the snapshot does not contain them.
        torch_version: the version of torch that recorded it, such as "2.12".
        budget: the time limit for making the script small, in seconds.
        keep_sizes: whether to keep the sizes of allocations: they are only left out, not merged or rounded.
        progress: a function that is called with a short text whenever the search advances.

    Returns:
        A `Reproduction`: the allocations and frees of the script, and the failure that they reproduce.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: an argument is not valid, or no request in the recording fails.

    Example:
        >>> reproduction = ullage.repro("oom.pickle", "repro.py")
    """
    path = Path(file)
    check_output("output", Path(output), inputs=(path,))
    if not 0 < budget < float("inf"):
        raise UsageError(f"budget={budget:g} is not a time limit; expected seconds above 0")
    reproduction = reproduce(
        history_of(path, device),
        semantics=semantics_given(torch_version),
        alloc_conf=alloc_conf,
        capacity_bytes=capacity_of(capacity),
        seconds=budget,
        keep_sizes=keep_sizes,
        progress=progress,
    )
    write_whole(Path(output), script_of(reproduction).encode())
    return reproduction
