"""`ullage explain`: why did it run out of memory, and what would have prevented it?"""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage._output import check_output
from ullage.cli.history import (
    AllocConfOption,
    CapacityOption,
    DeviceOption,
    SnapshotFile,
    TorchVersionOption,
    history_of,
)
from ullage.cli.progress import with_progress
from ullage.cli.show import show
from ullage.cli.values import size_of
from ullage.settings import semantics_of

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage explain oom.pickle\n\n"
    "ullage explain snapshot.pickle.gz --html page.html\n\n"
    "ullage explain snapshot.pickle --capacity 10GiB (would this run fit there?)\n\n"
    "[bold]To record one[/] torch.cuda.memory._record_memory_history() at the start, and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught.\n\n"
    "[bold]Exit code[/] 0 explained, 2 wrong usage or a file that cannot be read."
)


def explain(
    file: SnapshotFile,
    device: DeviceOption = None,
    capacity: CapacityOption = None,
    alloc_conf: AllocConfOption = None,
    torch_version: TorchVersionOption = "2.11",
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
) -> None:
    """Say why a recorded run ran out of memory, who held it, and which change is proved to let it through.

    Nothing of the file is run, and neither torch nor a GPU is needed: the run is replayed on a model of PyTorch's
    allocator that is equal to it byte for byte.
    """
    # Here, because numpy is not for those who ask another command.
    from ullage.analysis.describe import describe
    from ullage.analysis.explain import explain as run_explain

    if html is not None:
        check_output("--html", html, inputs=(file,))
    history = history_of(file, device)
    explanation = with_progress(
        lambda tell: run_explain(
            history,
            source=str(file),
            semantics=semantics_of(torch_version),
            alloc_conf=alloc_conf,
            capacity_bytes=size_of(capacity, "--capacity"),
            with_picture=html is not None,
            progress=tell,
        )
    )
    show(describe(explanation), explanation.to_json() if as_json else None, page=html)
