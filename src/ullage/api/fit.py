"""With which batch does this script fit?"""

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
    """Find the largest value of a script's option with which it fits on a GPU: it and the next one are both run.

    Args:
        script: the path of a Python file, which is run unmodified.
        arguments: what follows the script on its command line.
        progress: called with a short text whenever the search gets further.

    Raises:
        ScriptError: the script failed for another reason than memory with every value.
        UllageError: as of `ullage.predict`.
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
        raise UsageError(f"--vary is given {len(vary)} times; expected once, or twice for a frontier")
    axes = [Axis.parse(text) for text in vary]
    if len({axis.option for axis in axes}) < len(axes):
        raise UsageError(f"--vary {axes[0].option} is given twice; expected two different options")
    return axes
