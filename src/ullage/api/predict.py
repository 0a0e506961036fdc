"""Will this script fit on that card?"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ullage.api.request import request_of
from ullage.api.show import write_page
from ullage.api.values import check_page
from ullage.base.public import public
from ullage.gpu.emulator.library import PLACEMENTS
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.request import ALL, ALONE, Request
from ullage.predicting.prediction.several.compiled import predict_beside_eager
from ullage.predicting.prediction.several.draws import predict_with_draws
from ullage.predicting.prediction.several.every_rank import predict_all_ranks
from ullage.predicting.prediction.several.resumed import predict_resumed


@public
def predict(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    gpu: str,
    steps: int | None = None,
    seconds: float = 300.0,
    arch: str | None = None,
    count: int = 1,
    world_size: int | None = None,
    rank: int | Literal["all"] = 0,
    alloc_conf: str | None = None,
    total_memory: int | str | None = None,
    context: int | str | None = None,
    cudnn_workspace: int | str | None = None,
    placement: str = PLACEMENTS[0],
    values: str = "auto",
    values_seed: int = 0,
    draws: int = 3,
    routing: str = "auto",
    snapshot: str | Path | None = None,
    html: str | Path | None = None,
    picture: bool = False,
    beside_eager: bool = True,
    output: bool = False,
    processes: str = ALONE,
    until: str | None = None,
    resume: str | None = None,
    batches: Literal["heaviest"] | None = None,
    minutes: float = 5.0,
    random_weights: bool = False,
    config: str | Path | None = None,
    made_up_data: str | None = None,
    lengths: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    host_memory: int | str | None = None,
    request: str | None = None,
) -> Prediction:
    """Run a script for a few steps on an emulated card, in a process of its own, and say whether it fits.

    Args:
        script: the path of a Python file or a notebook, which is run unmodified; or the first word of a command, "-m",
            "torchrun" or any program, of whose processes the one that uses the card most is predicted.
        arguments: what stands behind the script on its command line.
        gpu: a card's name ("RTX 4090") or a size ("24GiB").
        steps: stop after this many optimizer steps; None: 3, and up to 6 more until the peaks settle.
        seconds: stop after this time.
        arch: the architecture of a card that is given by size, such as "sm_90".
        count: how many such cards the script sees.
        world_size: run as one rank of this many, in one process.
        rank: which rank; "all" runs each in turn and returns the prediction of the fullest.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF for the run; None: that of this process's environment.
        total_memory: the card's memory in place of the known one; bytes, or a text such as "14.56GiB".
        context: what the CUDA context takes; bytes or a text.
        cudnn_workspace: the workspace of every cuDNN plan, in place of cuDNN's own; bytes or a text.
        placement: whose driver puts memory at its addresses: "linux", "wsl", "windows" or "linux-host".
        values: what is read back from the card: "auto": what is known, and drawn where it is not, for as long as
            something is read; "on"; "off": zero; "all": everything is computed on the host.
        values_seed: what is drawn follows from it.
        draws: how many seeds to try where drawn values may decide; the interval holds one more run in 95 of 100 cases.
        routing: which experts a router with drawn scores chooses: "drawn", "balanced", "worst", or a number, the
            exponent of a Zipf law; "auto": "drawn", but of a rank among others "balanced", with "worst" as the
            interval's end.
        snapshot: where to write a PyTorch memory snapshot.
        html: where to write a page with pictures.
        picture: keep what a page draws, for `ullage.write_page` later; `html` implies it.
        beside_eager: run a script that uses torch.compile once more without.
        output: pass what the script prints on to standard error.
        processes: which of the processes that a launcher starts run: "alone": the rank that is asked for; "real": all
            of them together.
        until: go on past the settled steps: through the first "eval" or "save" after a step, or to the script's "end".
        resume: run the script once more, with these further arguments (as a shell reads them), and report both runs:
            "--resume_from_checkpoint out/checkpoint-3". Without `until`, the first run goes on to its first save.
        batches: "heaviest": go through an epoch of the training loader, run the heaviest batches and one of every
            shape, and foresee what is reserved over the whole epoch.
        minutes: the time for that, beside `seconds`.
        random_weights: make weights and tokenizers that are not here up from their configuration.
        config: a folder with the config.json of models that are not known.
        made_up_data: rows in place of a data set that is not here: "text:length=2048,rows=64", "chat:...",
            "preference:...", "image:224".
        lengths: a file with the lengths of these rows, one a line, or LENGTH,COUNT.
        progress: called with a short text whenever the run gets further.
        host_memory: the memory of one node's host; bytes, or a text such as "64GiB". With it the host decides too.
        request: "slurm" or "k8s": write the lines that ask a cluster for what was found.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: no torch built for CUDA is installed.
        EmulationError: the card cannot be emulated here.
        UnknownGpuError, UsageError: an argument is not what is expected.
    """
    wanted = request_of(
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
        count=count,
        world_size=world_size,
        alloc_conf=alloc_conf,
        draws=draws,
        host_memory=host_memory,
        processes=processes,
        until=until,
        batches=batches,
        minutes=minutes,
        job_request=request,
        echo=output,
        rank=0 if rank == "all" else rank,
        snapshot=None if snapshot is None else Path(snapshot),
        picture=picture or html is not None,
    )
    return _answer(wanted, resume, progress, html, every_rank=rank == "all", beside_eager=beside_eager)


def _answer(
    request: Request,
    resume: str | None,
    progress: Callable[[str], None],
    html: str | Path | None,
    *,
    every_rank: bool,
    beside_eager: bool,
) -> Prediction:
    """Run a request: once, with every rank in turn, or beside eager; and write the page."""
    check_page(html, request.script, *([request.snapshot] if request.snapshot else []))
    if every_rank and request.is_command:
        request, every_rank = replace(request, processes=ALL), False
    work = predict_all_ranks if every_rank else predict_beside_eager if beside_eager else predict_with_draws
    prediction = predict_resumed(request, resume, work, progress=progress)
    if html is not None:
        write_page(prediction, html)
    return prediction
