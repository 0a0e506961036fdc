"""`ullage predict`: will this script fit on that card?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from ullage.base.errors import ExitCode, UsageError, quoted
from ullage.base.option import options_of
from ullage.cli.command import WORKSPACES, Json, Script, with_options
from ullage.cli.exit_codes import exit_codes
from ullage.cli.show import show, with_progress
from ullage.options import AdviseOptions, PredictOptions

if TYPE_CHECKING:
    from ullage.predicting.prediction.data.prediction import Prediction

EPILOG: Final = (
    "[bold]Examples[/]\n\n"
    "ullage predict train.py --gpu 'RTX 3060'\n\n"
    "ullage predict train.py --batch-size 8 --gpu T4 --steps 5\n\n"
    "ullage predict train.py --gpu 24GiB --arch sm_89 --alloc-conf expandable_segments:True\n\n"
    "ullage predict --gpu H100 --count 8 torchrun --nproc-per-node 8 train.py --batch-size 4\n\n"
    "ullage predict --gpu H100 -m package.train (also trl, accelerate launch, deepspeed, a notebook)\n\n"
    "ullage predict --gpu H100 train.py -- --steps 1000 (after --, every option is the script's)\n\n"
    f"{WORKSPACES}\n\n"
    f"{exit_codes('predict')}"
)


@with_options(PredictOptions)
def predict(
    command: typer.Context,
    script: Script,
    *,
    as_json: Json = False,
    advise: Annotated[
        bool, typer.Option("--advise", help="Where it does not fit, find what to change too, as ullage advise does.")
    ] = False,
    **given: Any,
) -> None:
    """Run a script or a command for a few steps on an emulated GPU, and say whether it fits.

    The script runs unmodified, with PyTorch's own allocator, on an emulated card: every byte is PyTorch's answer, and
    no GPU is needed or touched.
    """
    # Here, because what runs a script is not for those who ask another command.
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
    """Find what to change, and show it behind the prediction, or with it in one JSON."""
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
