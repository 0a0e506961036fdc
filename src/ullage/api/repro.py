"""The same failure as a script of a few lines."""

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
    """Make a script of a few lines that runs out of memory as a recorded run did.

    Args:
        file: a snapshot (`torch.cuda.memory._dump_snapshot`); gzip too.
        output: where to write the script.
        device: which card's history; None: the one that failed or reserved most.
        capacity: what the allocator could reserve at most; bytes, or a text such as "10GiB".
        alloc_conf: the settings in force, where the snapshot does not have them.
        torch_version: the torch that recorded it, such as "2.12".
        budget: seconds for making it small.
        keep_sizes: only leave allocations out; neither merge them nor round sizes.
        progress: called with a short text as the search goes on.

    Raises:
        SnapshotError: the file cannot be read.
        UsageError: an argument is not what is expected, or nothing in the recording fails.
    """
    path = Path(file)
    check_output("--output", Path(output), inputs=(path,))
    if not 0 < budget < float("inf"):
        raise UsageError(f"--budget {budget:g} is not a time; expected seconds above 0")
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
