"""Explains an out-of-memory error of PyTorch whose message has no figures or only some."""

import re
from typing import Final

from ullage.base.units import GIB, TIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.actions import generic_actions, one_tensor
from ullage.explaining.analysis.text.allocator.full import actions_of
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict
from ullage.recorded.message.message import Message

_HUGE_REQUEST_BYTES: Final = 24 * GIB
"""The size of a single request from which its shape is probably not what the user expects."""
_ENDS_AT_DEVICE: Final = re.compile(r"(?:on device|\bGPU)\W*$")
"""Pattern for a message that ends where PyTorch writes the number of the GPU."""


def judge_bare(message: Message, situation: Situation) -> TextVerdict:
    """Return the verdict on a message that has no figures of the GPU's memory."""
    asked = f" for a request of {text_of_bytes(message.requested_bytes)}" if message.requested_bytes else ""
    note = "give the whole message: the rest has the allocated, the free and the total memory"
    if _ENDS_AT_DEVICE.search(message.text):
        note = (
            "PyTorch wrote the GPU's number as a control character, at which many programs cut the text: this message "
            "contains nothing more. It comes from the allocator cudaMallocAsync; start the program with "
            "PYTORCH_CUDA_ALLOC_CONF=backend:native (ComfyUI: --disable-cuda-malloc) to get the figures"
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        # In public threads, too little GPU memory is by far the most frequent cause of a message without figures.
        likely=Cause.BOGUS_SIZE if (message.requested_bytes or 0) >= TIB else Cause.TRULY_FULL,
        sentence=f"GPU memory ran out{asked}; the message has no figures that show the cause.",
        remedies=(
            *((one_tensor(situation),) if (message.requested_bytes or 0) >= _HUGE_REQUEST_BYTES else ()),
            *generic_actions(situation, "a guess: the error message does not say who held the memory"),
        ),
        notes=(note,),
    )


def judge_without_free(message: Message, situation: Situation, requested: int) -> TextVerdict:
    """Return the verdict on a message that does not say how much GPU memory was free."""
    total, held = message.total_bytes, held_bytes(message)
    if total is None:
        return judge_bare(message, situation)
    if message.allocated_bytes is not None and message.allocated_bytes + requested > total:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"PyTorch had {text_of_bytes(message.allocated_bytes)} of {text_of_bytes(total)} allocated when a "
                f"request for {text_of_bytes(requested)} failed."
            ),
            remedies=tuple(actions_of(message, situation, requested, message.allocated_bytes + requested - total)),
        )
    had = f", and PyTorch itself held {text_of_bytes(held)}" if message.allocated_bytes is not None else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"A request for {text_of_bytes(requested)} was refused on a GPU with {text_of_bytes(total)}{had}; the "
            "message does not say how much memory was free."
        ),
        likely=Cause.TRULY_FULL if situation.phase is not FailurePhase.UNKNOWN else None,
        remedies=tuple(generic_actions(situation, "a guess: the message is cut, so who held the memory is unknown")),
        notes=(
            "check for other programs on the GPU, for WSL or Windows, which provide less than the GPU has, and for "
            "the rest of the message if it was cut",
        ),
    )


def held_bytes(message: Message) -> int:
    """Return the bytes that PyTorch held according to the message; 0 if the message has no such figure."""
    return message.reserved_bytes or message.allocated_bytes or 0
