"""`ullage.fit`: find the largest batch size with which a script fits on a GPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from ullage.api.values import check_page, margin_of, request_of, with_page
from ullage.base.errors import UsageError
from ullage.base.option import takes
from ullage.base.public import public
from ullage.options import FitOptions
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import Fit
from ullage.predicting.fitting.fit import fit as run_fit


@public
@takes(FitOptions, draws=1)
def fit(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    progress: Callable[[str], None] = lambda text: None,
    **options: Unpack[FitOptions],
) -> Fit:
    """Find the largest value of one of the script's options with which the script fits on a GPU.

    The script is run with that value, which fits, and with the next larger one, which does not.

    Args:
        script: the path of a Python file. It runs unmodified.
        arguments: the arguments of the script.
        progress: a function that is called with a short text whenever the search advances.

    Returns:
        A `Fit`: the largest value that fits, the first one that does not, and the memory of each tested value; for
        two options, the frontier of values.

    Raises:
        ScriptError: the script failed with every value for another reason than memory.
        UllageError: any error that `ullage.predict` raises.

    Example:
        >>> answer = ullage.fit("train.py", gpu="RTX 4090", vary="--batch-size=8..64:8")
        >>> ullage.show(answer)
    """
    vary, html = options["vary"], options["html"]
    axes = _axes([vary] if isinstance(vary, str) else vary)
    request = request_of(script, arguments, options, picture=options["picture"] or html is not None)
    check_page(html, script)
    answer = run_fit(
        request,
        axes[0],
        second=axes[1] if axes[1:] else None,
        margin_bytes=margin_of(options["margin"], request.total_bytes),
        changes=options["changes"],
        progress=progress,
    )
    return with_page(answer, html)


def _axes(vary: Sequence[str]) -> list[Axis]:
    if not 1 <= len(vary) <= 2:
        raise UsageError(f"vary= is given {len(vary)} times; expected once, or twice for a frontier")
    axes = [Axis.parse(text) for text in vary]
    if len({axis.option for axis in axes}) < len(axes):
        raise UsageError(f"vary={axes[0].option} is given twice; expected two different options")
    return axes
