"""`ullage.fit_layout`: find the parallel layouts with which a script fits on a number of GPUs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from ullage.api.values import check_page, margin_of, request_of, with_page
from ullage.base.engines.chosen import open_engine
from ullage.base.errors import UsageError
from ullage.base.option import check_choices, takes
from ullage.base.public import public
from ullage.options import FitLayoutOptions
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.layouts.fit_layouts import LayoutQuestion, fit_layouts
from ullage.predicting.layouts.layout import LayoutSpace
from ullage.predicting.layouts.layout_fit import LayoutFit
from ullage.predicting.layouts.option_map import map_of
from ullage.predicting.layouts.result_store import ResultStore, store_path


@public
@takes(FitLayoutOptions, draws=1)
def fit_layout(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    progress: Callable[[str], None] = lambda text: None,
    so_far: Callable[[LayoutFit], None] = lambda answer: None,
    **options: Unpack[FitLayoutOptions],
) -> LayoutFit:
    """Find the parallel layouts with which a script fits on a number of GPUs, and the largest micro-batch of each
    layout.

    Args:
        script: the path of a Python file, which runs unmodified, or the first word of a command.
        arguments: the arguments of the script, without the options of the layout.
        progress: a function that is called with a short text whenever the search advances.
        so_far: a function that is called with the results so far if the search is interrupted.

    Returns:
        A `LayoutFit`: every tested layout with its memory per GPU and its largest micro-batch.

    Raises:
        ScriptError: the script failed with every layout for another reason than memory.
        UllageError: any error that `ullage.predict` raises; or a package that `on` needs is not installed.

    Example:
        >>> answer = ullage.fit_layout(
        ...     "train.py", gpu="H100", cards=64, layout="dp*tp*pp", layout_map="torchtitan", most=["tp=8"]
        ... )
        >>> ullage.show(answer)
    """
    html, cards = options["html"], options["cards"]
    request = request_of(script, arguments, options).with_options(world_size=cards)
    check_page(html, script)
    check_choices(options, FitLayoutOptions)
    space = LayoutSpace.parse(options["layout"], cards, most=options["most"], choose=options["choose"])
    _check_counts(options["accumulate"], options["item_tokens"])
    question = LayoutQuestion(
        request=request,
        space=space,
        option_map=map_of(options["layout_map"], options["layout_option"], space, order=options["rank_order"]),
        axis=_axis(options["vary"]),
        margin_bytes=margin_of(options["margin"], request.total_bytes),
        every_stage=options["ranks"] == "stages",
        accumulate=options["accumulate"],
        item_tokens=options["item_tokens"],
        layout_text=options["layout"],
    )
    request.check()
    is_drawn = options["picture"] or html is not None
    with (
        open_engine(options["on"], workers=options["workers"]) as engine,
        ResultStore(store_path(options["store"])) as kept,
    ):
        found = fit_layouts(question, engine, kept, picture=is_drawn, progress=progress, so_far=so_far)
    return with_page(found, html)


def _axis(vary: str | Sequence[str] | None) -> Axis | None:
    given = [vary] if isinstance(vary, str) else list(vary or ())
    if len(given) > 1:
        raise UsageError(f"vary= is given {len(given)} times with layout=; expected once, or not at all")
    return Axis.parse(given[0]) if given else None


def _check_counts(accumulate: int, item_tokens: int | None) -> None:
    for option, count in (("accumulate", accumulate), ("item_tokens", item_tokens)):
        if count is not None and count < 1:
            raise UsageError(f"{option}={count} is out of range; expected 1 or more")
