"""What makes this script fit?"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from ullage.api.values import check_page, request_of, with_page
from ullage.base.errors import UsageError
from ullage.base.option import takes
from ullage.base.output import check_output
from ullage.base.own_files import write_whole
from ullage.base.public import public
from ullage.options import AdviseOptions
from ullage.predicting.advice.advice import Advice
from ullage.predicting.advice.advice import advise as find_advice
from ullage.predicting.fitting.axis import Axis


@public
@takes(AdviseOptions)
def advise(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    progress: Callable[[str], None] = lambda text: None,
    **options: Unpack[AdviseOptions],
) -> Advice:
    """Find what to change so that a script fits on a GPU; every change is run, and none is made in the script's file.

    Args:
        script: the path of a Python file, which is run unmodified.
        arguments: what follows the script on its command line.
        progress: called with a short text whenever the search gets further.

    Raises:
        ScriptError: the script fails for another reason than memory.
        UllageError: as of `ullage.predict`.
    """
    patch, vary, html = options["patch"], options["vary"], options["html"]
    axis = Axis.parse(vary) if vary is not None else None
    check_patch(patch, vary, script, html)
    request = request_of(script, arguments, {**options, "draws": 1})
    check_page(html, script)
    answer = find_advice(request, axis=axis, progress=progress)
    if patch is not None:
        write_patch(answer, patch)
    return with_page(answer, html)


def check_patch(patch: str | Path | None, vary: str | None, script: str | Path, html: str | Path | None = None) -> None:
    """Raise UsageError where the diff of --patch cannot be written, would overwrite the script, or is never made."""
    if patch is None:
        return
    if vary is not None:
        raise UsageError("--patch has no meaning next to --vary; expected one of them")
    check_output("--patch", Path(patch), inputs=(Path(script), *([] if html is None else [Path(html)])))


def write_patch(answer: Advice, patch: str | Path) -> bool:
    """Write the diff of advice, and tell whether there is one.

    Raises:
        OSError: the file cannot be written; nothing of it is left.
    """
    if answer.written is None or not answer.written.diff:
        return False
    write_whole(Path(patch), answer.written.diff.encode())
    return True
