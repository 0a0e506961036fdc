"""The request of a run, from options as a call gives them: sizes, steps, what is made up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypedDict, Unpack

from ullage.api.values import size_of
from ullage.gpu.values.choice import ValuesChoice
from ullage.predicting.made_up.choice import MadeUpChoice
from ullage.predicting.prediction.request import Request

_STEPS: Final = 3
_MORE_STEPS: Final = 6


class PlainOptions(TypedDict, total=False):
    """The options that a request has as they were given."""

    arch: str | None
    count: int
    world_size: int | None
    rank: int
    alloc_conf: str | None
    draws: int
    picture: bool
    echo: bool
    snapshot: Path | None
    processes: str
    until: str | None
    batches: Literal["heaviest"] | None
    minutes: float
    job_request: str | None


def request_of(
    script: str | Path,
    arguments: Sequence[str],
    *,
    gpu: str,
    seconds: float,
    steps: int | None,
    placement: str,
    values: str,
    values_seed: int,
    routing: str,
    random_weights: bool,
    config: str | Path | None,
    made_up_data: str | None,
    lengths: str | Path | None,
    total_memory: int | str | None,
    context: int | str | None,
    cudnn_workspace: int | str | None,
    host_memory: int | str | None = None,
    **others: Unpack[PlainOptions],
) -> Request:
    """Return what to run, on which card and for how long; the options have the meanings that `ullage.predict` gives.

    Raises:
        UsageError: an option is not what is expected.
    """
    some, more = (_STEPS, _MORE_STEPS) if steps is None else (steps, 0)
    return Request(
        script=Path(script),
        arguments=tuple(arguments),
        gpu=gpu,
        seconds=seconds,
        steps=some,
        more_steps=more,
        placement=placement,
        values=ValuesChoice(mode=values, seed=values_seed, routing=routing),
        made_up=MadeUpChoice(
            random_weights=random_weights,
            config=None if config is None else str(Path(config).absolute()),
            data=made_up_data,
            lengths=None if lengths is None else str(Path(lengths).absolute()),
        ),
        total_memory_bytes=size_of(total_memory, "--total-memory"),
        context_bytes=size_of(context, "--context"),
        cudnn_workspace_bytes=size_of(cudnn_workspace, "--cudnn-workspace"),
        host_memory_bytes=size_of(host_memory, "--host-memory"),
        **others,
    )
