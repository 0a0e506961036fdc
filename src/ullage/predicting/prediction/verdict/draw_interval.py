"""The interval in which the figure of one more run lies, by the figures of runs whose values were drawn from seeds."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

_QUANTILES: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom; above, that of 30 is taken."""


_MODEL_ERROR: Final = 0.005
"""The share by which the peak of a real run may lie beside those of draws that agree. Measured by
benchmarks/values/sizes.py: 0.44 % at most in the 17 programs it was taken from, 0.1 % in the 15 added afterwards."""


def interval_of_peaks(peaks: Sequence[float]) -> tuple[float, float]:
    """Return the interval for the peak of a run, by the peaks of runs whose values were drawn.

    It is that of `interval_of_draws`, half a percent wider at both ends: what is drawn is no model's own numbers, and
    draws may agree with each other where a real run differs from them.
    """
    low, high = interval_of_draws(peaks)
    return low * (1 - _MODEL_ERROR), high * (1 + _MODEL_ERROR)


def interval_of_draws(figures: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds the figure of one more run in 95 of 100 cases.

    The smallest and the largest of n runs hold one more of the same kind in (n - 1) of (n + 1) cases only: with three
    seeds that is a half. So this is the prediction interval of Student's t distribution, taken of the logarithms,
    because what values decide is multiplied by sizes. It holds all figures that were given.

    Args:
        figures: the same figure of each run, 0 or more.

    Returns:
        The ends of the interval. They are equal where all figures are, and with a single figure.
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
