"""`ullage explain`: why did it run out of memory, and what would have prevented it?"""

from pathlib import Path
from typing import Annotated, Final

import typer

from ullage._errors import UsageError
from ullage._output import check_output
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
    file: Annotated[Path, typer.Argument(help="A snapshot that torch.cuda.memory._dump_snapshot() wrote; gzip too.")],
    device: Annotated[
        int | None, typer.Option(help="Which card's history. [default: the one with most entries]")
    ] = None,
    capacity: Annotated[str | None, typer.Option(help="What the allocator could reserve at most.")] = None,
    alloc_conf: Annotated[str | None, typer.Option(help="PYTORCH_ALLOC_CONF of the run.")] = None,
    torch_version: Annotated[str, typer.Option(help="The version of torch that recorded it.")] = "2.11",
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
    from ullage.snapshot.snapshot import load_snapshot

    if html is not None:
        check_output("--html", html, inputs=(file,))
    snapshot = load_snapshot(file)
    if device is None:
        device = max(snapshot.devices, key=lambda number: (len(snapshot.devices[number]), -number))
    if device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices))
        raise UsageError(f"--device {device} has no history in {file}; expected one of {known}")
    history = snapshot.devices[device]
    explanation = with_progress(
        lambda tell: run_explain(
            history,
            source=str(file),
            semantics=semantics_of(torch_version),
            alloc_conf=alloc_conf,
            capacity_bytes=size_of(capacity, "--capacity"),
            progress=tell,
        )
    )
    show(describe(explanation), explanation.to_json() if as_json else None, page=html)
