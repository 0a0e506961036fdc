"""Reads `@pytest.mark.gpu_memory`: how much a test may allocate and leave behind, and on which card it runs."""

from dataclasses import dataclass
from typing import Any, Final

import pytest

from ullage.base.errors import UsageError, quoted
from ullage.base.units import parse_bytes

MARKER: Final = "gpu_memory"
VALUES: Final = ("on", "off", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The memory that a test is allowed, and the card on which it runs."""

    peak_bytes: int | None = None
    """The bytes that may be allocated at once; None: any number."""
    leak_bytes: int | None = None
    """The bytes that may be held after the test in addition to those before; None: any number."""
    gpu: str | None = None
    """The name of the emulated card; None: the default one."""
    values: str = "on"
    """The answer to what is read back from the emulated card, as in `ullage.emulate`."""


def allowance_of(item: pytest.Item) -> Allowance:
    """Read a test's markers; the nearest one wins.

    Raises:
        UsageError: a marker has a wrong argument.
    """
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        if mark.args or not mark.kwargs.keys() <= {"peak", "leak", "gpu", "values"}:
            raise UsageError(
                f"@pytest.mark.gpu_memory of {item.nodeid} has {[*mark.args, *mark.kwargs]}; "
                "expected peak=, leak=, gpu= and values= by name"
            )
        given |= mark.kwargs
    allowance = Allowance(
        peak_bytes=_bytes_of("peak", given.get("peak")),
        leak_bytes=_bytes_of("leak", given.get("leak")),
        gpu=given.get("gpu") or item.config.getoption("gpu_memory_gpu"),
        values=given.get("values", "on"),
    )
    if allowance.values not in VALUES:
        raise UsageError(f"values={quoted(allowance.values)}; expected one of {', '.join(VALUES)}")
    if not isinstance(allowance.gpu, str | None):
        raise UsageError(f"gpu={quoted(allowance.gpu)} is not the name of a card; expected one such as 'T4' or '24GiB'")
    return allowance


def _bytes_of(name: str, given: Any) -> int | None:
    try:
        size = parse_bytes(given) if isinstance(given, str) else given
    except UsageError as error:
        raise UsageError(f"{name}={error}") from None
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise UsageError(f"{name}={quoted(given)}; expected a number of bytes, 0 or more, or a text such as '2GiB'")
    return size
