"""What libraries took as workspaces in a run: cuDNN's plans and whose answer they are, and the sizes that are guesses.

A convolution's workspace is cuDNN's own answer where cuDNN is installed. What a library tells only to a card's handle
(recurrent networks, a batch norm's reserve, dropout's states, CTC, FFT) is a guess with an interval, which the C files
of `ullage.gpu.emulator` state.
"""

from collections.abc import Sequence
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.gpu.emulator.profile import workspace_range
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.predicting.prediction.data.prediction import CudnnUse, Guess
from ullage.predicting.prediction.data.run_result import Measured
from ullage.report.report import Within

_REASONS: Final = 3
_PATCH: Final = 100  # versions that differ in less rank engines alike
_KEPT: Final = ("rnn", "batch_norm")  # at least in part
_LABELS: Final = {
    "rnn": "RNN workspaces",
    "batch_norm": "batch norm workspaces",
    "dropout": "RNN dropout state",
    "ctc": "CTC loss workspaces",
    "fft": "FFT work areas",
    "nccl": "NCCL's buffers",
}


def cudnn_of(measured: Measured) -> CudnnUse:
    """Read what ran in cuDNN from a run's result."""
    plans = measured.cudnn.by_source
    tried = plans.get("cudnn")
    below, above = workspace_range({source: figures for source, figures in plans.items() if source != "cudnn"})
    return CudnnUse(
        version=measured.cudnn_version,
        problems={source: figures.problems for source, figures in plans.items()},
        largest_workspace_bytes=max((figures.largest_workspace_bytes for figures in plans.values()), default=0),
        below_bytes=max(below, tried.most_below_bytes if tried else 0),
        above_bytes=max(above, _above_trials(measured, tried.most_above_bytes) if tried else 0),
        benchmark_bytes=tried.most_above_bytes if tried else 0,
        reasons=list(measured.cudnn.reasons),
    )


def _above_trials(measured: Measured, above: int) -> int:
    """Bound, in bytes, what the plans that a benchmark keeps on a real card may add to the reserved peak.

    In the first step, where plans are tried, the largest of each problem was allocated and is in the peak. In the later
    ones the plan that is kept may take as much more than the one that was kept here.
    """
    later = [step.peak_reserved_bytes for step in measured.steps[1:]]
    peak = measured.peak_reserved_bytes
    return max(0, max(later, default=peak) + above - peak) if above else 0


def guesses_of(measured: Measured) -> list[Guess]:
    """Read what was guessed from a run's result."""
    return [
        Guess(
            kind=kind,
            count=figures.count,
            guessed_bytes=figures.guessed_bytes,
            low_bytes=figures.guessed_bytes - figures.below_bytes,
            high_bytes=figures.guessed_bytes + figures.above_bytes,
        )
        for kind, figures in measured.guesses.items()
    ]


def doubt_of(cudnn: CudnnUse, guesses: Sequence[Guess]) -> tuple[int, int]:
    """Bound, in bytes, how much less and how much more than was counted a real card may use for all of it.

    A sum: the kinds may have their extremes at once.
    """
    below = sum(guess.guessed_bytes - guess.low_bytes for guess in guesses)
    above = sum(guess.high_bytes - guess.guessed_bytes for guess in guesses)
    return cudnn.below_bytes + below, cudnn.above_bytes + above


def spare_of(measured: Measured) -> int:
    """Bound, in bytes, how much less than was counted a real card may have needed when memory ran out.

    That is what guesses keep from forward to backward, and a guess that memory ran out over. Scratch memory that is
    not in use does not count: PyTorch has given back all that it caches by then.
    """
    figures = (figures for kind, figures in measured.guesses.items() if kind in _KEPT)
    return sum(figure.below_bytes + figure.expected_below_bytes for figure in figures)


def rows_of(cudnn: CudnnUse, guesses: Sequence[Guess]) -> tuple[Within, ...]:
    """Say of each kind how much it took, who says so, and what a real card may take."""
    rows = [Within(label="cuDNN workspaces", text=_plans_text(cudnn))] if cudnn.problems else []
    for guess in guesses:
        ends = f"{text_of_bytes(guess.low_bytes)} to {text_of_bytes(guess.high_bytes)} on a real card"
        if guess.kind == "nccl":
            of = f"{guess.count} communicator{'s' if guess.count > 1 else ''}; none in the above"
            rows.append(Within(label=_LABELS[guess.kind], text=f"{ends}, of {of}"))
            continue
        taken = f"{text_of_bytes(guess.guessed_bytes)} in the above" if guess.guessed_bytes else "none"
        rows.append(Within(label=_LABELS[guess.kind], text=f"guessed: {taken}, {ends}"))
    return tuple(rows)


def less_or_more(below_bytes: int, above_bytes: int) -> str:
    """Say by how much a figure may be off: "2.0 MiB less or 1.0 MiB more"; empty where it is exact."""
    ends = ((below_bytes, "less"), (above_bytes, "more"))
    return " or ".join(f"{text_of_bytes(size)} {word}" for size, word in ends if size)


def notes_of(cudnn: CudnnUse, torch: TorchBuild) -> list[str]:
    """Say why workspaces are not cuDNN's own, of the first few, or whose plans they are."""
    notes = []
    if "cudnn" in cudnn.problems and torch.planning and cudnn.version // _PATCH != torch.cudnn // _PATCH:
        asked, wanted = (f"{number // 10000}.{number // 100 % 100}" for number in (cudnn.version, torch.cudnn))
        notes.append(f"cuDNN {asked} was asked, and torch {torch.version} requires {wanted}: its plans may be others")
    notes += [f"workspaces not asked of cuDNN: {reason}" for reason in cudnn.reasons[:_REASONS]]
    if len(cudnn.reasons) > _REASONS:
        notes.append(f"and {len(cudnn.reasons) - _REASONS} more reasons of this kind (all with --json)")
    return notes


def _plans_text(cudnn: CudnnUse) -> str:
    largest = cudnn.largest_workspace_bytes
    taken = f"up to {text_of_bytes(largest)} at once, in the above" if largest else "none in the above"
    kept = ""
    if cudnn.benchmark_bytes:
        already = ", as trying them did" if not cudnn.above_bytes else ""
        more = text_of_bytes(cudnn.benchmark_bytes)
        kept = f"; of the plans that benchmark=True tries, the one that a real card keeps may take {more} more{already}"
    off = less_or_more(cudnn.below_bytes, cudnn.above_bytes)
    doubt = f"; a real card may use up to {off}" if off else ""
    return f"{taken}; {_sources_text(cudnn)}{kept}{doubt}"


def _sources_text(cudnn: CudnnUse) -> str:
    words = {
        "cudnn": f"by cuDNN {cudnn.version // 10000}.{cudnn.version // 100 % 100}'s own plans",
        "table": "estimated from others like them",
        "given": "as given",
        "unknown": "not known and left out",
    }
    counted = [(cudnn.problems[source], text) for source, text in words.items() if source in cudnn.problems]
    if len(counted) > 1:
        return "operations: " + ", ".join(f"{count} {text}" for count, text in counted)
    count, text = counted[0]
    return f"all {count} operations {text}" if count > 1 else f"the only operation {text}"
