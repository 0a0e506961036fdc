"""Report the workspaces of libraries such as cuDNN, and the uncertainty of their sizes.

Some sizes are available only on a real GPU: recurrent networks, batch norm, dropout, CTC and FFT. These sizes are
estimates.
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
_PATCH: Final = 100  # versions of cuDNN that differ in less than this rank engines alike
_KEPT: Final = ("rnn", "batch_norm")  # at least part of it is kept from forward to backward
_LABELS: Final = {
    "rnn": "RNN workspaces",
    "batch_norm": "batch norm workspaces",
    "dropout": "RNN dropout state",
    "ctc": "CTC loss workspaces",
    "fft": "FFT work areas",
    "nccl": "NCCL's buffers",
}


def cudnn_of(measured: Measured) -> CudnnUse:
    """Return the cuDNN operations of a run, with the possible range of their workspace sizes."""
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


# In the first step, benchmark mode tries plans, and the largest workspace of each problem is in the peak. In later
# steps, a real GPU may choose a plan with a larger workspace than the one chosen here.
def _above_trials(measured: Measured, above: int) -> int:
    later = [step.peak_reserved_bytes for step in measured.steps[1:]]
    peak = measured.peak_reserved_bytes
    return max(0, max(later, default=peak) + above - peak) if above else 0


def guesses_of(measured: Measured) -> list[Guess]:
    """Return the estimated sizes of library workspaces."""
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
    """Return how many bytes less, and how many bytes more, library workspaces may use on a real GPU."""
    below = sum(guess.guessed_bytes - guess.low_bytes for guess in guesses)
    above = sum(guess.high_bytes - guess.guessed_bytes for guess in guesses)
    return cudnn.below_bytes + below, cudnn.above_bytes + above


def spare_of(measured: Measured) -> int:
    """Return by how many bytes ullage may have overestimated the library workspaces when memory ran out.

    The return value is an upper bound.
    """
    figures = (figures for kind, figures in measured.guesses.items() if kind in _KEPT)
    return sum(figure.below_bytes + figure.expected_below_bytes for figure in figures)


def rows_of(cudnn: CudnnUse, guesses: Sequence[Guess]) -> tuple[Within, ...]:
    """Return one report row per kind of library workspace, with its size, the source, and the possible range."""
    rows = [Within(label="cuDNN workspaces", text=_plans_text(cudnn))] if cudnn.problems else []
    for guess in guesses:
        ends = f"{text_of_bytes(guess.low_bytes)} to {text_of_bytes(guess.high_bytes)} on a real GPU"
        if guess.kind == "nccl":
            of = f"{guess.count} communicator{'s' if guess.count > 1 else ''}; not included above"
            rows.append(Within(label=_LABELS[guess.kind], text=f"{ends}, for {of}"))
            continue
        taken = f"{text_of_bytes(guess.guessed_bytes)} included above" if guess.guessed_bytes else "none"
        rows.append(Within(label=_LABELS[guess.kind], text=f"estimate: {taken}, {ends}"))
    return tuple(rows)


def less_or_more(below_bytes: int, above_bytes: int) -> str:
    """Return a text such as "2.0 MiB less or 1.0 MiB more", or an empty text if the size is exact."""
    ends = ((below_bytes, "less"), (above_bytes, "more"))
    return " or ".join(f"{text_of_bytes(size)} {word}" for size, word in ends if size)


def notes_of(cudnn: CudnnUse, torch: TorchBuild) -> list[str]:
    """Return notes for a report about uncertain cuDNN workspace sizes.

    A size is uncertain if ullage could not query cuDNN, or queried another cuDNN version than PyTorch requires.
    """
    notes = []
    if "cudnn" in cudnn.problems and torch.planning and cudnn.version // _PATCH != torch.cudnn // _PATCH:
        asked, wanted = (f"{number // 10000}.{number // 100 % 100}" for number in (cudnn.version, torch.cudnn))
        notes.append(f"cuDNN {asked} was queried, but torch {torch.version} requires {wanted}: its plans may differ")
    notes += [f"workspace sizes that cuDNN was not queried for: {reason}" for reason in cudnn.reasons[:_REASONS]]
    if len(cudnn.reasons) > _REASONS:
        notes.append(f"and {len(cudnn.reasons) - _REASONS} more reasons of this kind (all with --json)")
    return notes


def _plans_text(cudnn: CudnnUse) -> str:
    largest = cudnn.largest_workspace_bytes
    taken = f"up to {text_of_bytes(largest)} at a time, included above" if largest else "not included above"
    kept = ""
    if cudnn.benchmark_bytes:
        already = ", which the trials already used" if not cudnn.above_bytes else ""
        more = text_of_bytes(cudnn.benchmark_bytes)
        kept = f"; of the plans that benchmark=True tries, the one chosen on a real GPU may use {more} more{already}"
    off = less_or_more(cudnn.below_bytes, cudnn.above_bytes)
    doubt = f"; a real GPU may use up to {off}" if off else ""
    return f"{taken}; {_sources_text(cudnn)}{kept}{doubt}"


def _sources_text(cudnn: CudnnUse) -> str:
    words = {
        "cudnn": f"with cuDNN {cudnn.version // 10000}.{cudnn.version // 100 % 100}'s own plans",
        "table": "estimated from similar operations",
        "given": "as given",
        "unknown": "unknown and left out",
    }
    counted = [(cudnn.problems[source], text) for source, text in words.items() if source in cudnn.problems]
    if len(counted) > 1:
        return "operations: " + ", ".join(f"{count} {text}" for count, text in counted)
    count, text = counted[0]
    return f"all {count} operations {text}" if count > 1 else f"the only operation {text}"
