"""The command `ullage predict`: find out whether a script fits on a GPU."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from ullage.base.errors import ExitCode, UsageError, quoted
from ullage.base.option import options_of
from ullage.cli.command import WORKSPACES, Json, Script, epilog_of, with_options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show, with_progress
from ullage.options import AdviseOptions, PredictOptions

if TYPE_CHECKING:
    from ullage.predicting.prediction.data.prediction import Prediction

EPILOG: Final = epilog_of(
    "ullage predict train.py --gpu 'RTX 3060'",
    "ullage predict --gpu H100 --count 8 torchrun --nproc-per-node 8 train.py --batch-size 4",
    WORKSPACES,
    exit_codes("predict"),
    page="will_it_fit.md",
)


@with_options(PredictOptions)
def predict(
    command: typer.Context,
    script: Script,
    *,
    as_json: Json = False,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="If the script does not fit, also find changes with which the script fits, as `ullage advise` does.",
        ),
    ] = False,
    **given: Any,
) -> None:
    """Find out whether a script fits on a GPU, without the GPU.

    The unmodified script, or a command such as torchrun, runs for a few steps on an emulated GPU with PyTorch's own
    allocator. Every size is PyTorch's own result. A real GPU is neither needed nor used.
    """
    # Imported only here, because other commands do not need the modules that run a script.
    from ullage.api.predict import predict as ask
    from ullage.api.values import check_page
    from ullage.predicting.prediction.description.describe import describe

    page, snapshot = given.pop("html"), given["snapshot"]
    check_page(page, script, *([snapshot] if snapshot else []))
    chosen = {**given, "rank": _rank(given["rank"]), "picture": page is not None}
    prediction = with_progress(
        lambda progress: ask(script, command.args, progress=progress, **chosen), live=not given["output"]
    )
    is_advised = advise and _is_advised(prediction)
    if not as_json or not is_advised:
        show(describe(prediction), prediction.to_json() if as_json else None, page=page)
    if is_advised:
        _advise(prediction, script, command.args, chosen, as_json=as_json)
    raise typer.Exit(_exit_code(prediction, snapshot))


def _is_advised(prediction: "Prediction") -> bool:
    from ullage.predicting.prediction.data.prediction import Verdict
    from ullage.predicting.prediction.description.describe import is_of_card

    return prediction.verdict is Verdict.DOES_NOT_FIT and is_of_card(prediction)


def _advise(
    prediction: "Prediction", script: Path, arguments: list[str], chosen: dict[str, Any], *, as_json: bool
) -> None:
    from ullage.api.advise import advise as ask
    from ullage.predicting.advice.describe import describe

    same = {name: chosen[name] for name in options_of(AdviseOptions) if name in chosen}
    if same["rank"] == "all":
        same["rank"] = prediction.rank
    answer = with_progress(lambda progress: ask(script, arguments, **same, progress=progress))
    whole = {**prediction.to_json(), "advice": answer.to_json()} if as_json else None
    show(describe(answer), whole, page=None)


def _exit_code(prediction: "Prediction", snapshot: Path | None) -> ExitCode:
    if prediction.snapshot_error:
        sys.stderr.write(f"error: the snapshot {snapshot} was not written: {prediction.snapshot_error}\n")
        return ExitCode.WRONG_USAGE
    return prediction.verdict.exit_code


def _rank(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"--rank {quoted(text)} is not a rank; expected a number from 0 on, or all")
    return int(text)
