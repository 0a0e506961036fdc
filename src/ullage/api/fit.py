"""With which batch does this script fit?"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from ullage.api.request import request_of
from ullage.api.show import write_page
from ullage.api.values import check_page, margin_of
from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.gpu.emulator.library import PLACEMENTS
from ullage.gpu.gpus import find_gpu
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import Fit
from ullage.predicting.fitting.fit import fit as run_fit


@public
def fit(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    gpu: str,
    vary: str | Sequence[str],
    margin: int | str = 0,
    changes: bool = True,
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
    draws: int = 1,
    routing: str = "auto",
    html: str | Path | None = None,
    picture: bool = False,
    batches: Literal["heaviest"] | None = None,
    minutes: float = 5.0,
    random_weights: bool = False,
    config: str | Path | None = None,
    made_up_data: str | None = None,
    lengths: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Find the largest value of a script's option with which it fits on a card: it and the next one are both run.

    Args:
        script: the path of a Python file, which is run unmodified.
        arguments: what stands behind the script on its command line.
        gpu: a card's name ("RTX 4090") or a size ("24GiB").
        vary: the option and its values: "--batch-size", "--batch-size=8..64:8"; two of them for a frontier.
        margin: what has to stay free on the card; bytes, or a text such as "1GiB" or "5%".
        changes: try what needs no change to the script too: allocator settings, optimizer defaults.
        draws: how many seeds to try for every value of the option where drawn values may decide.
        steps, seconds, arch, world_size, rank, alloc_conf, total_memory, context, cudnn_workspace, placement, values,
            values_seed, routing, html, picture, batches, minutes, random_weights, config, made_up_data, lengths: as of
            `ullage.predict`, for every run.
        progress: called with a short text whenever the search gets further.

    Raises:
        ScriptError: the script failed for another reason than memory with every value.
        UllageError: as of `ullage.predict`.
    """
    axes = _axes([vary] if isinstance(vary, str) else vary)
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
        draws=draws,
        batches=batches,
        minutes=minutes,
        picture=picture or html is not None,
    )
    check_page(html, script)
    margin_bytes = margin_of(margin, request.total_bytes(find_gpu(gpu, arch=arch)))
    second = axes[1] if axes[1:] else None
    answer = run_fit(request, axes[0], second=second, margin_bytes=margin_bytes, changes=changes, progress=progress)
    if html is not None:
        write_page(answer, html)
    return answer


def _axes(vary: Sequence[str]) -> list[Axis]:
    if not 1 <= len(vary) <= 2:
        raise UsageError(f"--vary is given {len(vary)} times; expected once, or twice for a frontier")
    axes = [Axis.parse(text) for text in vary]
    if len({axis.option for axis in axes}) < len(axes):
        raise UsageError(f"--vary {axes[0].option} is given twice; expected two different options")
    return axes
