"""`ullage.advise`: find the changes with which a script fits on a GPU."""

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
from ullage.predicting.editing.diff import outside_of_root
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
    """Find the changes with which a script fits on a GPU.

    Each change is tested in a run; the script's file is not edited.

    Args:
        script: the path of a Python file. It runs unmodified.
        arguments: the arguments of the script.
        progress: a function that is called with a short text whenever the search advances.

    Returns:
        An `Advice`: the changes that make the script fit, with the measured memory and the diff to apply. Its
        verdict says whether a set of changes was found.

    Raises:
        ScriptError: the script fails for another reason than memory.
        UllageError: any error that `ullage.predict` raises.

    Example:
        >>> advice = ullage.advise("train.py", ["--batch-size", "16"], gpu="T4")
        >>> ullage.show(advice)
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
    """Raise UsageError if the diff file cannot be written, or if patch= and vary= are both given."""
    if patch is None:
        return
    if vary is not None:
        raise UsageError("patch= cannot be combined with vary=; give one of them")
    check_output("patch", Path(patch), inputs=(Path(script), *([] if html is None else [Path(html)])))


def write_patch(answer: Advice, patch: str | Path) -> bool:
    """Write the recommended code changes as a diff file, and return whether there are any changes.

    Raises:
        UsageError: the changed files are in different repositories, so one `git apply` cannot change all of them.
        OSError: the file cannot be written; a partial file is removed.
    """
    if answer.written is None or not answer.written.diff:
        return False
    if outside := outside_of_root(answer.written.diff):
        raise UsageError(
            f"{patch} was not written: git applies changes only inside {answer.written.root}, and {outside} is "
            "outside; copy the changes from the report"
        )
    write_whole(Path(patch), answer.written.diff.encode())
    return True
