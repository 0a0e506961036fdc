"""What makes this script fit?"""

from collections.abc import Callable, Sequence
from pathlib import Path

from ullage.api.request import request_of
from ullage.api.show import write_page
from ullage.api.values import check_page
from ullage.base.errors import UsageError
from ullage.base.output import check_output
from ullage.base.own_files import write_whole
from ullage.base.public import public
from ullage.gpu.emulator.library import PLACEMENTS
from ullage.predicting.advice.advice import Advice
from ullage.predicting.advice.advice import advise as find_advice
from ullage.predicting.fitting.axis import Axis


@public
def advise(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    gpu: str,
    patch: str | Path | None = None,
    vary: str | None = None,
    steps: int | None = None,
    seconds: float = 300.0,
    arch: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    alloc_conf: str | None = None,
    total_memory: int | str | None = None,
    context: int | str | None = None,
    cudnn_workspace: int | str | None = None,
    placement: str = PLACEMENTS[0],
    values: str = "auto",
    values_seed: int = 0,
    routing: str = "auto",
    html: str | Path | None = None,
    random_weights: bool = False,
    config: str | Path | None = None,
    made_up_data: str | None = None,
    lengths: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Advice:
    """Find what to change so that a script fits on a card; every change is run, and none is made in the script's file.

    Args:
        script: the path of a Python file, which is run unmodified.
        arguments: what stands behind the script on its command line.
        gpu: a card's name ("RTX 3060") or a size ("24GiB").
        patch: where to write the diff that makes the advised changes; nothing is written where there is none.
        vary: an option of the script, "--batch-size" or "--batch-size=8..64:8": find its largest value, as the script
            is and with the changes of each cost added; no lines are written then.
        steps, seconds, arch, world_size, rank, alloc_conf, total_memory, context, cudnn_workspace, placement, values,
            values_seed, routing, html, random_weights, config, made_up_data, lengths: as of `ullage.predict`, for every
            run.
        progress: called with a short text whenever the search gets further.

    Raises:
        ScriptError: the script fails for another reason than memory.
        UllageError: as of `ullage.predict`.
    """
    axis = Axis.parse(vary) if vary is not None else None
    check_patch(patch, vary, script)
    request = request_of(
        script,
        arguments,
        gpu=gpu,
        seconds=seconds,
        steps=steps,
        placement=placement,
        values=values,
        values_seed=values_seed,
        routing=routing,
        random_weights=random_weights,
        config=config,
        made_up_data=made_up_data,
        lengths=lengths,
        total_memory=total_memory,
        context=context,
        cudnn_workspace=cudnn_workspace,
        arch=arch,
        world_size=world_size,
        rank=rank,
        alloc_conf=alloc_conf,
        draws=1,
    )
    check_page(html, script)
    answer = find_advice(request, axis=axis, progress=progress)
    if patch is not None:
        write_patch(answer, patch)
    if html is not None:
        write_page(answer, html)
    return answer


def check_patch(patch: str | Path | None, vary: str | None, script: str | Path) -> None:
    """Raise UsageError where the diff of --patch cannot be written, would overwrite the script, or is never made."""
    if patch is None:
        return
    if vary is not None:
        raise UsageError("--patch has no meaning beside --vary; expected one of them")
    check_output("--patch", Path(patch), inputs=(Path(script),))


def write_patch(answer: Advice, patch: str | Path) -> bool:
    """Write the diff of advice, and tell whether there is one.

    Raises:
        OSError: the file cannot be written; nothing of it is left.
    """
    if answer.written is None or not answer.written.diff:
        return False
    write_whole(Path(patch), answer.written.diff.encode())
    return True
