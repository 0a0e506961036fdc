"""Ray ends a task when the machine's memory (not the card's) is nearly full."""

from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.figure import bytes_of, number_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

PERHAPS: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "A worker of Ray's is gone, and Ray does not know why: it lists the machine's own memory as one reason "
        "of several."
    ),
    notes=(
        "dmesg -T | grep -i kill, or kubectl describe pod (OOMKilled), says whether it was memory",
        "the worker's own log, in /tmp/ray/session_latest/logs, has its last words",
    ),
)
"""The verdict on Ray's list of what may have ended a worker, of which the machine's memory is one."""


def node(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a task that Ray has ended to keep the machine alive."""
    used, total, said = message.host_used_bytes, message.host_total_bytes, message.said
    figures = ""
    if used is not None and total is not None:
        figures = f": {text_of_bytes(used)} of {text_of_bytes(total)} were in use"
        figures += f", and Ray ends a task from {number_of(said['threshold']):.0%} on" if "threshold" in said else ""
    notes = ["of the machine's memory a container or a batch system may allow less than there is; Ray counts that"]
    if "task_bytes" in said and used is not None:
        notes.insert(0, f"the task that was ended held {text_of_bytes(bytes_of(said['task_bytes']))} of it")
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"The machine's own memory ran out, not the card's{figures}.",
        remedies=(
            estimate(
                "fewer tasks at once: num_cpus or memory in @ray.remote", "each task has its own data and libraries"
            ),
            estimate(
                "RAY_memory_usage_threshold=0.98, set before ray start",
                "Ray waits longer; then the system kills a process instead",
            ),
        ),
        notes=tuple(notes),
    )
