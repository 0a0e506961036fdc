"""Compute the probable range of the memory peak of another run, from runs with several random seeds."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

# The 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom. The last one also serves for more
# than 30.
_QUANTILES: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


# Measured by benchmarks/values/sizes.py: at most 0.44 % in the 17 programs it was derived from, and 0.1 % in the 15
# programs added later.
_MODEL_ERROR: Final = 0.005


def interval_of_peaks(peaks: Sequence[float]) -> tuple[float, float]:
    """Return the probable range of a memory peak, from the peaks of runs with random values.

    Half a percent is added at both ends, because random values differ from the values of a real model.
    """
    low, high = interval_of_draws(peaks)
    return low * (1 - _MODEL_ERROR), high * (1 + _MODEL_ERROR)


def interval_of_draws(figures: Sequence[float]) -> tuple[float, float]:
    """Return the range that contains the figure of another run in 95 of 100 cases.

    This is the prediction interval of Student's t distribution for the logarithms of the figures. The range includes
    all given figures.

    Args:
        figures: the same figure of each run, 0 or more.

    Returns:
        The lower and upper end. They are equal if all figures are equal or if there is only one figure.
    """
    low, high = min(figures), max(figures)
    if low == high or low <= 0:
        return low, high
    logarithms = [math.log(each) for each in figures]
    count = len(figures)
    quantile = _QUANTILES[min(count - 1, len(_QUANTILES)) - 1]
    half = quantile * statistics.stdev(logarithms) * math.sqrt(1 + 1 / count)
    middle = statistics.fmean(logarithms)
    return min(low, math.exp(middle - half)), max(high, math.exp(middle + half))
