"""cuDNN's workspaces: nets are trained, and each of their convolutions and attentions is called alone.

The nets and the way to see each operation's blocks are those of `benchmarks/cudnn`. On the emulated GPU cuDNN itself
plans for the emulated compute capability, so every workspace has to be the real one. With `cudnn.benchmark = True`
PyTorch tries the plans: the first step's peak has the largest workspace, and the later steps' the one of the plan that
was fastest, for which ullage states an interval (docs/cudnn_plans.md).
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

from ..figure import Figure, recorded
from ..instruments import peaks, reset_peaks
from ..process import ROOT, die_with_parent, last_error
from ..question import Answer, GpuUnderTest, Question
from . import pairs

ASKED: Final = (
    "resnet18/fp32/channels_first", "resnet50/bf16/channels_last", "resnet50/fp16/channels_first",
    "vgg16/fp32/channels_first", "mobilenet_v2/bf16/channels_last", "convnext_tiny/fp32/channels_first",
    "vit_b_16/bf16/channels_last", "unet/fp32/channels_first", "unet/bf16/channels_last",
    "unet_3d/fp32/channels_first", "diffusion_block/fp16/channels_last", "speech_stem/fp32/channels_first",
)  # fmt: skip
TRIED: Final = ("resnet18", "unet")
"""With `cudnn.benchmark`."""
STEPS: Final = 3


def questions() -> list[Question]:
    """Each net in one form, then some with and without benchmark."""
    plain = [
        Question(name=f"cudnn_workspaces/{form}", about="peaks, and each operation's workspaces", seconds=11)
        for form in ASKED
    ]
    tried = [
        Question(name=f"cudnn_workspaces/benchmark/{net}", about="peaks without and with cudnn.benchmark", seconds=14)
        for net in TRIED
    ]
    return [*plain, *tried]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Train the net."""
    folder = str(ROOT / "benchmarks" / "cudnn")  # its files import one another by their names
    if folder not in sys.path:
        sys.path.insert(0, folder)
    net, *form = question.parts
    if net == "benchmark":
        return _benchmark(form[0], gpu)
    from asked import ask

    found: Answer = ask(net, *form)
    return found | {"plans": _plans(gpu)}


def _plans(gpu: GpuUnderTest) -> dict[str, dict[str, int]]:
    """Return whose answers the workspaces of an emulated GPU are; a real GPU has no such figures."""
    if not gpu.emulated:
        return {}
    from dataclasses import asdict

    from ullage.gpu.emulator import library

    return {source: asdict(figures) for source, figures in library.cudnn_plans().by_source.items()}


def _benchmark(net: str, gpu: GpuUnderTest) -> Answer:
    """Train in two children, because PyTorch keeps each problem's plan as long as a process lives."""
    import nets  # noqa: F401  imports torch, which must not initialise CUDA before the fork

    from tests.truth.runner import in_child

    found: Answer = {}
    for name, tries in (("off", False), ("on", True)):
        found[name] = in_child(lambda tries=tries: _trained(net, gpu, tries=tries))
        if "error" in found[name]:
            raise RuntimeError(f"{net} with benchmark {name}: {last_error(found[name]['error'])}")
    return found


def _trained(net: str, gpu: GpuUnderTest, *, tries: bool) -> Answer:
    die_with_parent()
    import torch
    from nets import prepare

    torch.backends.cudnn.benchmark = tries
    model, x = prepare(net, "channels_first")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    steps = []
    for _ in range(STEPS):
        reset_peaks()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        steps.append(peaks())
    return {"steps": steps, "plans": _plans(gpu)}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare peaks and each operation's blocks."""
    if ("on" in real) != ("on" in emulated):
        raise ValueError("the two answers are to different questions")
    if "on" in real:
        return list(_compared_benchmark(real, emulated))
    list(pairs("operations", real["operations"], emulated["operations"]))
    known = _are_known(emulated["plans"])
    figures = [
        _figure(counter, counter.removesuffix("_bytes"), real[counter], emulated[counter], known=known)
        for counter in ("allocated_bytes", "reserved_bytes")
    ]
    operations = real["operations"].keys() | emulated["operations"].keys()
    for operation in sorted(operations):
        there, here = (found["operations"].get(operation, {}) for found in (real, emulated))
        for way in ("forward", "backward"):
            name = f"{operation}, {way}, blocks_bytes"
            figures.append(_figure(name, "workspace", there.get(way), here.get(way), known=known))
    return figures


def _are_known(plans: dict[str, Any]) -> bool:
    """Return whether every workspace is cuDNN's own answer: not so where cuDNN is not installed."""
    return set(plans) <= {"cudnn"}


def _figure(name: str, kind: str, real: Any, emulated: Any, *, known: bool) -> Figure:
    return Figure(name=name, kind=kind, real=real, emulated=emulated, recorded_only=not known)


def _compared_benchmark(real: Answer, emulated: Answer) -> Iterator[Figure]:
    known = all(_are_known(emulated[name]["plans"]) for name in ("off", "on"))
    for number, (step, ours) in enumerate(zip(real["off"]["steps"], emulated["off"]["steps"], strict=True)):
        for counter, value, other in pairs("counters", step, ours):
            name = f"benchmark off, step {number + 1}, peak of {counter}"
            yield _figure(name, counter.removesuffix("_bytes"), value, other, known=known)
    if known:
        yield from _compared_trials(real["on"]["steps"], emulated["on"]["steps"], emulated["on"]["plans"]["cudnn"])


def _compared_trials(
    there: list[dict[str, int]], here: list[dict[str, int]], plans: dict[str, int]
) -> Iterator[Figure]:
    """Compare steps in which plans are tried, and then chosen by their speed.

    The largest workspace of each problem is part of the first step's peak. A later step has one workspace at a time, so
    its peaks differ by at most what the chosen one may differ; but which segments are kept for it depends on all that
    was chosen before, so ullage states reserved memory for all steps together.
    """
    below, above = plans["most_below_bytes"], plans["most_above_bytes"]
    for number, (step, ours) in enumerate(zip(there, here, strict=True)):
        for counter, value, other in pairs("counters", step, ours):
            name, kind = f"benchmark on, step {number + 1}, peak of {counter}", counter.removesuffix("_bytes")
            if counter == "reserved_bytes":
                yield recorded(name, f"{kind}, benchmark", value)
            elif number == 0:
                yield Figure(name=name, kind=kind, real=value, emulated=other)
            else:
                interval = (other - below, other + above)
                yield Figure(name=name, kind=f"{kind}, benchmark", real=value, interval=interval)
    peak = max(step["reserved_bytes"] for step in here)
    yield Figure(
        name="benchmark on, all steps, peak of reserved_bytes",
        kind="reserved, benchmark",
        real=max(step["reserved_bytes"] for step in there),
        interval=(peak - below, peak + above),
    )
