"""What is worth a row."""

from typing import Final

LEAST_SHARE: Final = 0.01
"""The share of the peak below which nothing is said."""
