"""Which parallel layout of this script fits on so many cards?"""

from collections.abc import Callable, Sequence
from pathlib import Path

from ullage.api.request import request_of
from ullage.api.show import write_page
from ullage.api.values import check_page, margin_of
from ullage.base.engines.chosen import open_engine
from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.gpu.emulator.library import PLACEMENTS
from ullage.gpu.gpus import find_gpu
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.layouts.fit_layouts import LayoutQuestion, fit_layouts
from ullage.predicting.layouts.layout import LayoutSpace
from ullage.predicting.layouts.layout_fit import LayoutFit
from ullage.predicting.layouts.option_map import map_of
from ullage.predicting.layouts.representative import RANKS
from ullage.predicting.layouts.result_store import ResultStore, store_path


@public
def fit_layout(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    gpu: str,
    layout: str,
    cards: int,
    layout_map: str | None = None,
    layout_option: Sequence[str] = (),
    most: Sequence[str] = (),
    choose: Sequence[str] = (),
    rank_order: str | None = None,
    ranks: str = RANKS[0],
    vary: str | Sequence[str] | None = None,
    accumulate: int = 1,
    item_tokens: int | None = None,
    margin: int | str = 0,
    on: str | None = None,
    workers: int | None = None,
    store: str | Path | None = None,
    steps: int | None = None,
    seconds: float = 300.0,
    arch: str | None = None,
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
    random_weights: bool = False,
    config: str | Path | None = None,
    made_up_data: str | None = None,
    lengths: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    so_far: Callable[[LayoutFit], None] = lambda answer: None,
) -> LayoutFit:
    """Find which parallel layouts of a script fit on so many cards, and with how large a micro-batch.

    Args:
        script: the path of a Python file, which is run unmodified; or the first word of a command.
        arguments: what stands behind the script on its command line, without the options of the layout.
        gpu: a card's name ("H100") or a size ("80GiB").
        layout: the axes whose sizes multiply to the cards, "dp*tp*pp*cp"; behind a comma those within dp and cp, "ep".
        cards: how many cards there are.
        layout_map: whose options the script has: torchtitan, megatron, accelerate, deepspeed or lightning.
        layout_option: the script's own option for an axis, "tp=--tensor-parallel", or a variable, "tp=env:TP".
        most: the largest size of an axis, "tp=8".
        choose: options with values that are tried for each layout, "--checkpoint=none,full".
        rank_order: the axes from the outermost to the innermost, "pp*dp*cp*tp", where the program has another order.
        ranks: "alike": one rank of each kind that is alike by construction; "stages": one of every pipeline stage.
        vary: the option of the micro-batch and its values, "--micro-batch=1..16"; None: as the arguments have it.
        accumulate: the micro-batches of a step, for the items of a step.
        item_tokens: the tokens of an item, for the tokens of a step.
        margin: what has to stay free on every card; bytes, or a text such as "1GiB" or "5%".
        on: what does the runs: "local", "ray", "ray://host:port", "slurm", "slurm:partition=cpu", "submitit-local".
        workers: how many runs at once on this machine; None: one for each core.
        store: the file in which results are kept; None: one in the user's cache folder; "none": nowhere.
        draws: how many seeds to try where drawn values may decide.
        steps, seconds, arch, alloc_conf, total_memory, context, cudnn_workspace, placement, values, values_seed,
            routing, html, picture, random_weights, config, made_up_data, lengths: as of `ullage.predict`, for every
            run.
        progress: called with a short text whenever the search gets further.
        so_far: called with what is known where the search is interrupted.

    Raises:
        ScriptError: the script failed with every layout, for another reason than memory.
        UllageError: as of `ullage.predict`; or what `on` needs is not there.
    """
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
        world_size=cards,
        alloc_conf=alloc_conf,
        draws=draws,
    )
    check_page(html, script)
    space = LayoutSpace.parse(layout, cards, most=most, choose=choose)
    _check_counts(ranks, accumulate, item_tokens)
    question = LayoutQuestion(
        request=request,
        space=space,
        option_map=map_of(layout_map, layout_option, space, order=rank_order),
        axis=_axis(vary),
        margin_bytes=margin_of(margin, request.total_bytes(find_gpu(gpu, arch=arch))),
        every_stage=ranks == RANKS[1],
        accumulate=accumulate,
        item_tokens=item_tokens,
        layout_text=layout,
    )
    request.check(find_gpu(gpu, arch=arch))
    is_drawn = picture or html is not None
    with open_engine(on, workers=workers) as engine, ResultStore(store_path(store)) as kept:
        found = fit_layouts(question, engine, kept, picture=is_drawn, progress=progress, so_far=so_far)
    if html is not None:
        write_page(found, html)
    return found


def _axis(vary: str | Sequence[str] | None) -> Axis | None:
    given = [vary] if isinstance(vary, str) else list(vary or ())
    if len(given) > 1:
        raise UsageError(f"--vary is given {len(given)} times beside --layout; expected once, or not at all")
    return Axis.parse(given[0]) if given else None


def _check_counts(ranks: str, accumulate: int, item_tokens: int | None) -> None:
    if ranks not in RANKS:
        raise UsageError(f"--ranks {ranks} is not known; expected {' or '.join(RANKS)}")
    for option, count in (("--accumulate", accumulate), ("--item-tokens", item_tokens)):
        if count is not None and count < 1:
            raise UsageError(f"{option} {count} is no number of them; expected 1 or more")
