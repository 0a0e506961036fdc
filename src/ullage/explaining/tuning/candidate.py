"""The allocator settings that a search may try, as values for PYTORCH_CUDA_ALLOC_CONF."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ullage.recorded.settings import SINCE, Settings, SettingsError, parse_settings, split_options

Version = tuple[int, int]
_FRACTION: Final = "per_process_memory_fraction"
_GARBAGE: Final = "garbage_collection_threshold"
# The values that are tried for each option, in this order. The search also tries to omit the option.
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "expandable_segments": ("True",),
    "max_split_size_mb": ("32", "64", "128", "256", "512"),
    "roundup_power2_divisions": ("2", "4", "8", "16", "[64:1,>:8]"),
    _GARBAGE: ("0.6", "0.8", "0.9"),
    "large_segment_size_mb": ("12", "32", "64", "128"),
    "max_non_split_rounding_mb": ("64", "256"),
}
_LARGE_STEP: Final = 2  # In MiB; the driver maps memory in pages of 2 MiB.
_SPLIT_STEP: Final = 4  # In MiB; the bounds of the search for a number.


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A set of allocator options. Some are varied by the search, and the others are fixed."""

    options: tuple[tuple[str, str], ...] = ()
    """The allocator options that the search varies, as (name, value) pairs."""
    kept: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """All options of this candidate as a value for PYTORCH_CUDA_ALLOC_CONF."""
        pairs = [*self.options, *self.kept]
        if self.value_of(_GARBAGE) and not any(name == _FRACTION for name, _ in self.kept):
            pairs.append((_FRACTION, "0.95"))  # Without a memory limit PyTorch does not collect garbage.
        return ",".join(f"{name}:{value}" for name, value in pairs)

    def value_of(self, name: str) -> str | None:
        """Return the value of an allocator option, or None if it is not set."""
        return dict(self.options).get(name)

    def with_option(self, name: str, value: str | None) -> "Candidate":
        """Return a copy with a new value for one allocator option. The value None removes the option."""
        values = {**dict(self.options), name: value}
        options = tuple((known, found) for known in _CHOICES if (found := values.get(known)) is not None)
        return replace(self, options=options)

    def settings(self, semantics: str) -> Settings | None:
        """Return the options as parsed settings. Return None if PyTorch would reject them."""
        try:
            return parse_settings(self.text, semantics=semantics)
        except SettingsError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The combinations of allocator options that make sense for a run and its torch version."""

    version: Version
    kept: tuple[tuple[str, str], ...]
    has_limit: bool
    """Whether the memory capacity is known. Without a known capacity, `garbage_collection_threshold` has no meaning."""

    def alone(self) -> Iterator[Candidate]:
        """Yield the settings without any searched option, and then settings with exactly one searched option."""
        none = Candidate(kept=self.kept)
        yield none
        yield from self.around(none)

    def around(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield every candidate that differs from the given one in exactly one option."""
        for name, choices in _CHOICES.items():
            now = candidate.value_of(name)
            for value in (None, *choices, *_between(name, now)):
                other = candidate.with_option(name, value)
                if value != now and self._makes_sense(other):
                    yield other

    def _makes_sense(self, candidate: Candidate) -> bool:
        if candidate.value_of("max_non_split_rounding_mb") and not candidate.value_of("max_split_size_mb"):
            return False  # It decides which free blocks above max_split_size_mb may be used.
        if candidate.value_of(_GARBAGE) and not self.has_limit:
            return False
        return all(self.version >= since for name, since in SINCE.items() if f"{name}:" in candidate.text)


def _between(name: str, value: str | None) -> tuple[str, ...]:
    step = {"max_split_size_mb": _SPLIT_STEP, "large_segment_size_mb": _LARGE_STEP}.get(name)
    if step is None or value is None:
        return ()
    near = (int(value) * quarters // 4 // step * step for quarters in (3, 5, 6))
    return tuple(str(number) for number in near if number >= 12)


def candidate_of(text: str) -> Candidate:
    """Return the allocator settings of a run as a candidate for the search."""
    pairs = split_options(text)
    searched = {name: value for name, value in pairs if name in _CHOICES}
    kept = tuple((name, value) for name, value in pairs if name not in _CHOICES)
    return Candidate(options=tuple((name, searched[name]) for name in _CHOICES if name in searched), kept=kept)


def version_of(text: str) -> Version:
    """Return the major and minor number of a torch version."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)
