"""`ullage explain`: out-of-memory errors that PyTorch raises on the GPU, and the cause that ullage names for each.

The cause is known by construction. It has to be named twice: from the snapshot, and from the error's text alone. The
figures of the text have to be PyTorch's counters at that moment, and the replay of the snapshot has to call the driver
where PyTorch did, with every allocation at its place.
"""

import json
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ballast import ballast
from ...figure import Figure, recorded
from ...process import ROOT, die_with_parent, end, last_error
from ...question import Answer, GpuUnderTest, Question
from ...record import packed
from .. import pairs
from .running_out import MIB, WAYS, warm_up

LEFT_BYTES = 4133 * MIB
"""Chosen so that a few MiB that the driver may take for itself change no figure."""
LIMIT_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A way to run out of memory, and the causes that have to be named."""

    cause: str
    """From the snapshot."""
    cause_of_text: str
    """From the error's text, which knows neither steps nor lines."""
    cause_expandable: str = ""
    """From the snapshot, with expandable segments; the same if empty."""
    limit_bytes: int | None = None
    """What `set_per_process_memory_fraction` allows."""
    filled_by: str = ""
    """What fills the GPU: see `ballast`."""


SITUATIONS = {
    "limit": Situation(cause="limit", cause_of_text="limit", cause_expandable="address_space", limit_bytes=2080 * MIB),
    "training": Situation(
        cause="limit", cause_of_text="limit", cause_expandable="address_space", limit_bytes=5000 * MIB
    ),
    "full": Situation(cause="truly_full", cause_of_text="truly_full", filled_by="tensor"),
    "fragmented": Situation(cause="fragmented", cause_of_text="fragmented", filled_by="tensor"),
    "leak": Situation(cause="leak", cause_of_text="disguised", filled_by="driver"),
    "accumulation": Situation(cause="accumulation", cause_of_text="disguised", filled_by="driver"),
}
"""Where the driver's memory fills the GPU, the text says that this process holds most of it outside of PyTorch. With
expandable segments a limit and addresses that ran out look alike in a snapshot; the verdict names both."""
QUESTIONS = {"limited": ("limit", "training"), "expandable": ("limit", "training"), "full": tuple(SITUATIONS)[2:]}
EVIDENCE = ("requested", "needed_segment", "allocated", "cached", "reserved", "peak_reserved", "largest_free_block")
FIGURES_OF_TEXT = {
    "requested": r"Tried to allocate (\S+ \w+)\.",
    "free": r"of which (\S+ \w+) is free",
    "allowed": r"(\S+ \w+) allowed;",
    "allocated": r"allocated memory (\S+ \w+) is allocated by PyTorch",
    "unallocated": r"and (\S+ \w+) is reserved by PyTorch but unallocated",
}


def questions() -> list[Question]:
    """Errors under a limit, with both kinds of segments; then errors of a GPU that is full."""
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return [
        Question(
            name=f"explain/{name}",
            about=f"the cause of real out-of-memory errors: {', '.join(situations)}",
            seconds=9,
            alone=name == "full",
            needs=("ullage",),
            environment=expandable if name == "expandable" else {},
        )
        for name, situations in QUESTIONS.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Run out of memory in each way, then have all of it explained."""
    import torch

    torch.cuda.init()
    if question.alone:
        warm_up()
    seen: list[dict[str, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *of: seen.append(_counters(*of)))
    with tempfile.TemporaryDirectory(prefix="ullage-explain-") as name:
        folder = Path(name)
        found = {each: _run_out(each, folder, seen) for each in QUESTIONS[question.parts[0]]}
        explained = _explained([folder / f"{each}.{kind}" for each in found for kind in ("pickle", "txt")])
        for each, one in found.items():
            one["is_expandable"] = question.parts[0] == "expandable"
            one["explained"] = _short(explained[f"{each}.pickle"])
            one["cause_of_text"] = explained[f"{each}.txt"]["cause"]
        kept = {each: packed(_without_folders((folder / f"{each}.pickle").read_bytes())) for each in found}
    return {"situations": found, "attachments": kept}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare causes with what they are by construction, texts with counters, and the rest with the emulated GPU's."""
    return [
        figure
        for name, there, here in pairs("situations", real["situations"], emulated["situations"])
        for figure in _figures(name, there, here)
    ]


def _figures(name: str, real: dict[str, Any], emulated: dict[str, Any]) -> list[Figure]:
    situation, said, expected = SITUATIONS[name], real["explained"], emulated["explained"]
    cause = situation.cause_expandable if real["is_expandable"] else situation.cause

    def figure(what: str, kind: str, value: Any, other: Any) -> Figure:
        return Figure(name=f"{name}, {what}", kind=kind, real=value, emulated=other)

    made = [
        figure("cause in the snapshot", "cause", said["cause"], cause),
        figure("cause in the error's text", "cause", real["cause_of_text"], situation.cause_of_text),
        figure("settings that let it through", "cause", said["settings"], expected["settings"]),
    ]
    in_text, counters = real["text"], _as_in_text(real["counters"], is_limited=situation.limit_bytes is not None)
    texts = pairs("figures of the text", in_text, counters)
    made += [figure(f"the text's {each}", "error text", value, counter) for each, value, counter in texts]
    is_filled = situation.filled_by == "tensor"
    evidence = {each: [_own(of, each, is_filled=is_filled) for of in (real, emulated)] for each in EVIDENCE}
    made += [figure(f"{each}_bytes", "evidence", *values) for each, values in evidence.items()]
    replay, other = said["fidelity"], expected["fidelity"]
    made += [figure(f"{each} of the replay", "replay", replay[each], 0) for each in ("departures", "displaced")]
    counted = ("operations", "placements")
    made += [figure(f"{each} of the replay", "replay", replay[each], other[each]) for each in counted]
    return [*made, recorded(f"{name}, the error's text", "error text", real["error"])]


def _own(of: dict[str, Any], name: str, *, is_filled: bool) -> int | None:
    """Return a figure of the evidence without the tensor that fills the GPU, if one does."""
    value = of["explained"]["evidence"].get(f"{name}_bytes")
    has_it = is_filled and name in ("allocated", "reserved", "peak_reserved")
    return value - of["ballast_bytes"] if has_it and value is not None else value


def _as_in_text(counters: dict[str, int], *, is_limited: bool) -> dict[str, str | None]:
    """Write counters as PyTorch's error does."""
    return {
        "requested": _size(counters["asked_bytes"]),
        "free": _size(counters["free_bytes"]),
        "allowed": _size(counters["allowed_bytes"]) if is_limited else None,
        "allocated": _size(counters["allocated_bytes"]),
        "unallocated": _size(counters["reserved_bytes"] - counters["allocated_bytes"]),
    }


def _size(size: int) -> str:
    """Write a size as PyTorch does.

    Raises:
        ValueError: no memory is of this size.
    """
    if not -(1 << 63) <= size < 1 << 63:
        raise ValueError(f"a counter of the answer is not a size: {size}")
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size > 1 << bits:
            return f"{size / (1 << bits):.2f} {unit}"
    return f"{size} bytes"


# ---- running out of memory


def _counters(device: int, asked: int, allowed: int, free: int) -> dict[str, int]:
    """Return PyTorch's counters at the moment of the failure; the allocator's observers are called with these."""
    import torch

    stats = torch.cuda.memory_stats(device)
    return {
        "asked_bytes": asked,
        "allowed_bytes": allowed,
        "free_bytes": free,
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
    }


def _run_out(name: str, folder: Path, seen: list[dict[str, int]]) -> dict[str, Any]:
    import gc

    import torch

    situation = SITUATIONS[name]
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (situation.limit_bytes or total) / total))
    gc.collect()
    torch.cuda.empty_cache()
    kind = situation.filled_by
    filling: AbstractContextManager[int] = ballast(LEFT_BYTES, kind=kind) if kind else nullcontext(0)
    with filling as size:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(stacks="python")
        text = _error_of(WAYS[name], folder / f"{name}.pickle")
        torch.cuda.memory._record_memory_history(None)
        gc.collect()
        torch.cuda.empty_cache()
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    in_text = {each: found[1] if (found := re.search(form, text)) else None for each, form in FIGURES_OF_TEXT.items()}
    return {"situation": name, "ballast_bytes": size, "error": text, "text": in_text, "counters": seen[-1]}


def _error_of(way: Callable[[], Any], snapshot: Path) -> str:
    """Run out of memory; leave a snapshot, and return the error's text.

    Raises:
        RuntimeError: memory did not run out.
    """
    import torch

    try:
        way()
    except torch.OutOfMemoryError as error:
        torch.cuda.memory._dump_snapshot(str(snapshot))
        return str(error)
    raise RuntimeError(f"{way.__name__}: memory did not run out")


# ---- having it explained


def _explained(files: list[Path]) -> dict[str, dict[str, Any]]:
    """Run `ullage explain FILE --json` for all files at once.

    Raises:
        RuntimeError: it fails, or takes too long.
    """
    running = []
    try:
        for file in files:
            running.append((file, _start(file)))
        until = time.monotonic() + LIMIT_SECONDS
        for file, process in running:
            if code := process.wait(max(until - time.monotonic(), 1)):
                why = last_error(_next_to(file, "err").read_text(encoding="utf-8", errors="replace"))
                raise RuntimeError(f"ullage explain {file.name} ended with code {code}: {why}")
    finally:
        for _, process in running:
            end(process)
    return {file.name: json.loads(_next_to(file, "json").read_text(encoding="utf-8")) for file in files}


def _start(file: Path) -> "subprocess.Popen[bytes]":
    """Have a file explained; the JSON and the progress go to files next to it."""
    with _next_to(file, "json").open("wb") as output, _next_to(file, "err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "ullage", "explain", str(file), "--json"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _next_to(file: Path, ending: str) -> Path:
    return file.with_name(f"{file.name}.{ending}")


def _short(explained: dict[str, Any]) -> dict[str, Any]:
    """Keep what is compared, and the sentence."""
    settings = {one["setting"]: one["fits"] for one in explained["remedies"] if one["setting"] and one["proved"]}
    kept = {name: explained[name] for name in ("cause", "sentence", "evidence", "fidelity")}
    return kept | {"settings": settings}


def _without_folders(snapshot: bytes) -> bytes:
    """Cut the folders off the file names of a snapshot that this process has written."""
    data = pickle.loads(snapshot)
    traces = [event for trace in data["device_traces"] for event in trace]
    blocks = [block for segment in data["segments"] for block in segment["blocks"]]
    for holder in (*traces, *blocks, *data["segments"]):
        for frame in holder.get("frames", ()):
            frame["filename"] = frame["filename"].rpartition("/")[2]
    return pickle.dumps(data)
