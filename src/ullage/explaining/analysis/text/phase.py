"""The parts of a program in which memory can run out, and the log lines that name them.

A traceback shows the part best (`ullage.explaining.analysis.text.situation`). Many texts have no traceback; then the
lines next to the error message, such as a progress bar, show what the program was doing.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class FailurePhase(StrEnum):
    """The part of a program that ran out of memory."""

    LOADING = "loading"
    """Weights are read or moved to the GPU."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    """The optimizer's step, whose first call creates its states."""
    EVALUATION = "evaluation"
    """A forward pass without gradients."""
    GENERATION = "generation"
    """Token generation with a language model, whose KV cache grows."""
    DECODING = "decoding"
    """The decoder of an image or video autoencoder (VAE)."""
    PREPARING = "preparing"
    """A model is wrapped for training on several GPUs, or its optimizer is partitioned."""
    GATHERING = "gathering"
    """A state dict or sharded parameters are collected, for example to save a checkpoint."""
    COMPILING = "compiling"
    """torch.compile or Triton tries kernels."""
    UNKNOWN = "unknown"


class Work(StrEnum):
    """Whether a program trains a model or uses it."""

    TRAINING = "training"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


_MODEL: Final = (
    r"(?:model|weights?|checkpoint|shards?|pipeline|transformer|unet|vae|text[ _-]?encoders?|safetensors|state[ _]dict"
    r"|adapter|lora|llm|params|parameters)"
)
_FINISHED: Final = re.compile(
    r"100 ?%|\b(?:done|completed?|success\w*|finished|end|ended|loaded|took)\b", re.IGNORECASE
)
"""Pattern for a line that says that a step has ended, so that it does not show what failed."""
_ROWS: Final = (
    (
        FailurePhase.LOADING,
        re.compile(
            rf"\b(?:load(?:ed|ing)?|(?:re|off|un)load(?:ing)?|dispatching|quantizing|moving|initiali[sz]ing)\b[^\n%]{{0,40}}?\b{_MODEL}\b"
            rf"|\b{_MODEL}\b[^\n%]{{0,20}}\bload(?:ed|ing)?\b|Node Type:\W{{0,4}}(?!\w*(?:Image|Audio|Video))\w*Loader",
            re.IGNORECASE,
        ),
    ),
    (
        FailurePhase.DECODING,
        re.compile(
            r"\bVAE\W?(?:tiled )?(?:decod|encod)|\b(?:cach|encod)(?:e|ing)\b[^\n]{0,20}\b(?:latents?|images?|videos?)\b"
            r"|\bdecod(?:e|ing)\b[^\n]{0,20}\b(?:latents?|videos?|frames?|images?|mesh)|Node Type:\W{0,4}VAE",
            re.IGNORECASE,
        ),
    ),
    (
        FailurePhase.OPTIMIZER,
        re.compile(
            r"\boptimi[sz]er[. _](?:step|states?)\b|\bexp_avg"
            r"|\b(?:initiali[sz]\w*|creat\w*)\b[^\n]{0,20}\boptimi[sz]ers?\b",
            re.IGNORECASE,
        ),
    ),
    (FailurePhase.GATHERING, re.compile(r"\bsaving\b[^\n]{0,30}\b(?:model|checkpoint|state|weights)", re.IGNORECASE)),
    (FailurePhase.COMPILING, re.compile(r"\bAUTOTUNE\b|\bautotuning\b")),
    (
        FailurePhase.EVALUATION,
        re.compile(
            r"^\W{0,4}(?:\S{1,30} - )?(?:running )?(?:evaluat|validat)(?:ing|ion)\b"
            r"|^\W{0,4}(?:eval|val(?:id)?)\b[^\n]{0,30}%\|",
            re.IGNORECASE,
        ),
    ),
)
"""Patterns for the phases that a log line next to an error can show. Of the patterns that match, the first decides."""


def phase_of_rows(rows: Iterable[str]) -> tuple[FailurePhase, str] | None:
    """Return the phase that log lines show, with the line that shows it. Return None if no line shows a phase.

    Args:
        rows: the lines, the nearest to the error message first.
    """
    for row in rows:
        phase = next((phase for phase, sign in _ROWS if sign.search(row) is not None), None)
        if phase is not None:
            return (phase, row) if _FINISHED.search(row) is None else None
    return None
