"""The command `ullage fit`: find the largest batch size with which a script fits on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from ullage.base.errors import UsageError
from ullage.base.option import defaults_of, options_of
from ullage.cli.command import WORKSPACES, Json, Script, epilog_of, with_options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show, with_progress
from ullage.options import FitLayoutOptions, FitOptions

if TYPE_CHECKING:
    from ullage.predicting.layouts.layout_fit import LayoutFit

EPILOG: Final = epilog_of(
    "ullage fit train.py --gpu 'RTX 4090' --vary --batch-size",
    "ullage fit train.py --gpu T4 --vary --batch-size=8..256:8 --margin 5%",
    WORKSPACES,
    exit_codes("fit"),
    page="will_it_fit.md, and docs/layouts.md for --layout",
)


@with_options(FitOptions, FitLayoutOptions, draws=1)
def fit(command: typer.Context, script: Script, *, as_json: Json = False, **given: Any) -> None:
    """Find the largest batch size, or value of any option, with which a script fits on a GPU, without the GPU.

    Each value is run on an emulated GPU, in a separate process, two at a time. The result is proved: the script was run
    with this value and fits, and with the next larger value and does not fit. With --layout, the parallel layouts of a
    number of GPUs are searched.
    """
    # Imported only here, because other commands do not need the modules that run a script.
    from ullage.api.fit import fit as ask
    from ullage.api.values import check_page
    from ullage.predicting.fitting.describe import describe

    page = given.pop("html")
    check_page(page, script)
    given["picture"] = page is not None
    if given["layout"] is not None:
        _fit_layout(script, command.args, given, page=page, as_json=as_json)
    chosen = _only(FitOptions, given, "without --layout")
    if given["vary"] is None:
        raise UsageError("an option to vary is missing; expected --vary with an option of the script, or --layout")
    answer = with_progress(lambda progress: ask(script, command.args, progress=progress, **chosen))
    show(describe(answer), answer.to_json() if as_json else None, page=page)
    raise typer.Exit(answer.exit_code)


def _fit_layout(
    script: Path, arguments: list[str], given: dict[str, Any], *, page: Path | None, as_json: bool
) -> NoReturn:
    from ullage.api.fit_layout import fit_layout as ask
    from ullage.predicting.layouts.describe import describe

    if given["cards"] is None:
        raise UsageError("--layout needs the number of GPUs to lay out; expected --cards 64 next to it")
    chosen = _only(FitLayoutOptions, given, "together with --layout")
    interrupted: list[LayoutFit] = []

    def search(progress: Callable[[str], None]) -> "LayoutFit":
        return ask(script, arguments, progress=progress, so_far=interrupted.append, **chosen)

    try:
        answer = with_progress(search)
    except BaseException:
        for cut in interrupted:
            show(describe(cut), cut.to_json() if as_json else None, page=page)
        raise
    show(describe(answer), answer.to_json() if as_json else None, page=page)
    raise typer.Exit(answer.exit_code)


def _only(listing: type, given: dict[str, Any], why: str) -> dict[str, Any]:
    defaults = defaults_of(FitOptions) | defaults_of(FitLayoutOptions)
    listed = options_of(listing)
    for name, value in given.items():
        if name not in listed and value != defaults.get(name) and value not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} has no meaning {why}")
    return {name: value for name, value in given.items() if name in listed}
