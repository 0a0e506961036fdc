"""The class `Release`: which PyTorch versions can have written a memory snapshot, as far as the keys in the file show.

A snapshot does not record the version of torch. Newer versions write more keys. The table was established with the
CUDA wheels of torch 2.11.0, 2.12.0, 2.13.0, 2.14.0 and 2.15.0, each of which recorded the same program.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ullage.recorded.settings import ALLOCATORS, USUAL

# The parts of a snapshot file, and the key that each version was the first to write in every file.
_ALWAYS: Final = (
    ("entries", "pool_id", "2.12"),
    ("settings", "max_round_threshold", "2.13"),
    ("root", "host_segments", "2.14"),
)
# Keys and actions that occur only in some files of the version and of later versions.
_SOMETIMES: Final = (("actions", "annotate", "2.14"), ("entries", "internal_metadata", "2.15"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The PyTorch versions that can have written a snapshot. Both limits are None if nothing is known."""

    least: str | None = None
    """The oldest version that writes all keys of the file. Older versions are certainly not the writer."""
    below: str | None = None
    """The oldest version that would have written a key that the file lacks. Other programs may have removed the key."""

    @classmethod
    def of(cls, **keys: Collection[str]) -> "Release":
        """Return the versions that the keys of a file allow.

        Args:
            keys: the keys of the `root` dictionary, of the `settings` and of all trace `entries`, and the `actions`.
                A part is left out, or empty, if the file does not have it.
        """
        found = [since for part, key, since in (*_ALWAYS, *_SOMETIMES) if key in keys.get(part, ())]
        missing = [since for part, key, since in _ALWAYS if keys.get(part) and key not in keys[part]]
        least = max(found, key=_number, default=None)
        below = min(missing, key=_number, default=None)
        if least is not None and below is not None and _number(below) <= _number(least):
            below = None
        return cls(least=least, below=below)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The versions whose allocators a replay tries, the most likely first: one of each rule for equal blocks.

        Of the versions with the same rule, it is the newest that the keys allow, because it knows the most options.
        """
        allowed = [version for version in ALLOCATORS if self._can_be(version, below=None)]
        likely = [version for version in allowed if self._can_be(version, below=self.below)]
        newest = {ALLOCATORS[version].tie: version for version in (*allowed, *likely)}
        usual = USUAL if USUAL in likely else likely[-1]
        others = [version for version in reversed(newest.values()) if version != usual]
        return (usual, *sorted(others, key=lambda version: version not in likely))

    @property
    def usual(self) -> str:
        """The version that is assumed if nothing else is known."""
        return self.candidates[0]

    @property
    def text(self) -> str:
        """The versions in words, such as "2.14 or later", or an empty text if nothing is known."""
        last = _before(self.below) if self.below is not None else None
        if self.least is not None:
            return self.least if last == self.least else f"{self.least} {f'to {last}' if last else 'or later'}"
        return f"{last} or earlier" if last is not None else ""

    # A version such as "2.13" stands for all versions up to the next one of the table.
    def _can_be(self, version: str, *, below: str | None) -> bool:
        names = list(ALLOCATORS)
        after = names[names.index(version) + 1 :]
        is_too_old = self.least is not None and bool(after) and _number(after[0]) <= _number(self.least)
        return not is_too_old and (below is None or _number(version) < _number(below))


def _number(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor)


def _before(version: str) -> str:
    major, minor = _number(version)
    return f"{major}.{minor - 1}"
