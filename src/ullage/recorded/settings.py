"""Parses PyTorch's allocator settings (PYTORCH_ALLOC_CONF) for different PyTorch versions.

This module parses settings as c10::CachingAllocator::AcceleratorAllocatorConfig and CUDAAllocatorConfig do (torch 2.8
to 2.15), and rejects the same settings. A real process aborts while torch is loaded; this module raises an error that
names the option, its value and the allowed values. It does not know the GPU, so fractions remain fractions.
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from ullage.base.errors import UsageError, quoted, shortened
from ullage.base.public import public
from ullage.base.units import GIB, MIB

UNLIMITED: Final = (1 << 64) - 1
"""The value of `max_split_bytes` that allows splitting blocks of every size (SIZE_MAX in PyTorch)."""
LARGE_SEGMENT_BYTES: Final = 20 * MIB
BLOCK_UNIT_BYTES: Final = 512
"""The allocator rounds every block up to a multiple of this many bytes (kMinBlockSize)."""
LARGEST_SMALL_BYTES: Final = MIB
"""The largest allocation in bytes that comes from the small pool (kSmallSize)."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""The size in bytes of a segment in the small pool (kSmallBuffer)."""
DRIVER_PAGE_BYTES: Final = 2 * MIB
"""The page size of the driver in bytes. It allocates memory in whole pages."""
LARGE_UNIT_BYTES: Final = 2 * MIB
"""The allocator rounds a large segment up to a multiple of this many bytes (kRoundLarge)."""
_SLOTS: Final = 16  # powers of two from 1 MiB to 64 GiB
VARIABLES: Final[tuple[str, ...]] = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The environment variables from which PyTorch reads allocator settings, in order of precedence.

Tested with the wheels of torch 2.8, 2.9, 2.10, 2.11 and 2.15: since 2.10, the first variable that is set is used; 2.8
and 2.9 read only the first variable.
"""
VARIABLE: Final = VARIABLES[0]
"""The environment variable in which ullage sets allocator settings. Every PyTorch version reads it first."""
_OTHERS_SINCE: Final = (2, 10)


class Tie(IntEnum):
    """How the allocator chooses among free blocks of equal size. The same table exists in C++
    (allocator/_core/settings.hpp).
    """

    ADDRESS = 0
    """The allocator chooses the free block at the lower address."""
    BLOCK = 1
    """The allocator chooses the free block that was created first."""
    SEGMENT = 2
    """The allocator chooses the free block in the oldest segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """The allocator rules that differ between PyTorch versions, measured with the wheel of each version."""

    tie: Tie
    routes_capture: bool
    """Whether this PyTorch version treats every use of a private pool like the capture of a CUDA graph."""


ALLOCATORS: Final[Mapping[str, Allocator]] = {
    "2.8": Allocator(tie=Tie.ADDRESS, routes_capture=True),
    "2.10": Allocator(tie=Tie.ADDRESS, routes_capture=True),
    "2.11": Allocator(tie=Tie.ADDRESS, routes_capture=True),
    "2.12": Allocator(tie=Tie.BLOCK, routes_capture=True),
    "2.13": Allocator(tie=Tie.SEGMENT, routes_capture=False),
    "2.15": Allocator(tie=Tie.SEGMENT, routes_capture=False),
}
"""The allocator versions that ullage simulates, by the PyTorch version that introduced each.

The allocators since 2.10 are equal to the wheels of 2.10 to 2.15. The allocator of 2.8 differs from its wheel if
max_split_size_mb is set or private pools are used; otherwise it is assumed to equal that of 2.10.
"""
SEMANTICS: Final = tuple(ALLOCATORS)
"""The PyTorch versions whose allocator rules ullage can simulate."""
USUAL: Final = "2.11"
"""The PyTorch version that ullage assumes if the version is unknown."""
SINCE: Final[Mapping[str, tuple[int, int]]] = {
    "expandable_segments": (2, 1),
    # Missing in 2.8; 2.9 was not checked for this option and the next one
    "graph_capture_record_stream_reuse": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "per_process_memory_fraction": (2, 10),
    "large_segment_size_mb": (2, 11),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
    "pinned_free_catch_all": (2, 12),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The first PyTorch version that accepts each allocator option. Older versions abort if the option is set."""


@public
class SettingsError(UsageError):
    """Raised for allocator settings that PyTorch would reject, such as an unknown option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of PyTorch's allocator. The defaults are those of a process without any settings."""

    semantics: str = USUAL
    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    roundup_divisions: tuple[int, ...] = (0,) * _SLOTS
    """The rounding steps between two powers of two, by size of the allocation. 0 and 1 mean no rounding."""
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    reserve: tuple[str, float] | None = None
    """The address space that an expandable segment reserves, as a fraction of GPU memory or in bytes. None means 9/8 of
    GPU memory.
    """
    backend: str = "native"

    def rounded_bytes(self, size_bytes: int) -> int:
        """Return the size in bytes to which the allocator rounds an allocation."""
        if size_bytes < BLOCK_UNIT_BYTES:
            return BLOCK_UNIT_BYTES
        slot = min(max((size_bytes >> 20).bit_length() - 1, 0), _SLOTS - 1)
        divisions = self.roundup_divisions[slot]
        unit = BLOCK_UNIT_BYTES
        if divisions > 1 and size_bytes > BLOCK_UNIT_BYTES * divisions:
            unit = max(1, 1 << size_bytes.bit_length() - divisions.bit_length())
        return -(-size_bytes // unit) * unit

    def reserve_bytes(self, total_bytes: int) -> int:
        """Return the bytes of address space that an expandable segment reserves on a GPU, or 0 if not set."""
        if self.reserve is None:
            return 0
        kind, value = self.reserve
        return int(min(value * total_bytes if kind == "fraction" else value, float(1 << 62)))


def semantics_of(version: str) -> str:
    """Return the PyTorch version to simulate for a given torch version. For example, 2.14.0 is simulated as "2.13".

    Raises:
        SettingsError: the text is not a version.
    """
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", version)
    if match is None:
        raise SettingsError(f"{quoted(version)} is not a version of torch; expected a version such as 2.11 or 2.15.0")
    wanted = int(match[1]), int(match[2])
    return max((name for name in SEMANTICS if _version_of(name) <= wanted), key=_version_of, default=SEMANTICS[0])


def _version_of(name: str) -> tuple[int, int]:
    major, minor = name.split(".")
    return int(major), int(minor)


def knows(semantics: str, option: str) -> bool:
    """Return whether the allocator of a PyTorch version accepts an option."""
    return SINCE.get(option, (0, 0)) <= _version_of(semantics)


def settings_in_force(environment: Mapping[str, str], semantics: str = USUAL) -> tuple[str, str | None]:
    """Return the allocator settings that PyTorch would read from the environment variables, and the variable that
    contains them.

    PyTorch uses the first of `VARIABLES` that is set, even if it is empty. It does not merge several variables.

    Args:
        environment: the environment variables of a process.
        semantics: the allocator's version, one of `SEMANTICS`; before 2.10 only one variable is read.
    """
    for name in VARIABLES if _version_of(semantics) >= _OTHERS_SINCE else (VARIABLE,):
        if name in environment:
            return environment[name], name
    return "", None


def recorded_settings(recorded: Mapping[str, object]) -> str | None:
    """Return the allocator settings that a snapshot contains as text, or None."""
    return next((text for name in VARIABLES if isinstance(text := recorded.get(name), str) and text), None)


def line_to_paste(text: str) -> str:
    """Return a shell command that sets exactly these allocator settings, whatever was set in the shell before."""
    if not text:
        return f"unset {' '.join(reversed(VARIABLES))}"
    return f"export {VARIABLE}={shlex.quote(text)}"


def split_options(text: str) -> tuple[tuple[str, str], ...]:
    """Split a text of valid allocator settings into (option, value) pairs."""
    found = re.findall(r"(?<![^,:\[\]])([^,:\[\]]++):(\[[^\]]{0,2000}\]|[^,:\[\]]+)", re.sub(r"\s", "", text))
    return tuple((name, value) for name, value in found)


def with_options(text: str, more: str) -> str:
    """Return a text of allocator settings with the options in `more` added or replaced."""
    options = dict(split_options(text)) | dict(split_options(more))
    return ",".join(f"{name}:{value}" for name, value in options.items())


def parse_settings(text: str, *, semantics: str = USUAL, before: Settings | None = None) -> Settings:
    """Parse allocator settings such as "expandable_segments:True,max_split_size_mb:128".

    Args:
        text: the value of PYTORCH_ALLOC_CONF; blanks are skipped.
        semantics: one of `SEMANTICS`.
        before: the settings to change, as torch._C._accelerator_setAllocatorSettings does. Only max_split_size_mb,
            roundup_power2_divisions and garbage_collection_threshold are reset to their defaults.

    Raises:
        SettingsError: PyTorch would reject the settings; the error names the option, its value and the allowed values.
    """
    if semantics not in SEMANTICS:
        raise SettingsError(f"{quoted(semantics)} is not a modelled allocator; expected one of {', '.join(SEMANTICS)}")
    settings = replace(before or Settings(), semantics=semantics)
    settings = replace(
        settings, max_split_bytes=UNLIMITED, roundup_divisions=(0,) * _SLOTS, garbage_collection_threshold=0.0
    )
    tokens = _Tokens(text)
    given: set[str] = set()
    while not tokens.at_end:
        option = tokens.next("an option")
        if option not in (known := sorted(name for name in (*_VALUES, *_LISTS) if knows(semantics, name))):
            since = " before torch {}.{}".format(*SINCE[option]) if option in SINCE else ""
            raise SettingsError(
                f"{quoted(option)} is not an option of PyTorch's allocator{since}; expected one of {', '.join(known)}"
            )
        tokens.expect(":", option)
        if option in _LISTS:
            settings = _LISTS[option](settings, option, tokens)
        else:
            field, value_of = _VALUES[option]
            value = value_of(option, tokens.next(f"the value of {option}"))
            settings = replace(settings, **{field: value}) if field else settings
        given.add(option)
        if not tokens.at_end:
            tokens.expect(",", option)
    return _checked(settings, given)


def text_of_settings(settings: Settings) -> str:
    """Return allocator settings as a value for PYTORCH_CUDA_ALLOC_CONF. Options at their defaults are left out."""
    default = Settings(semantics=settings.semantics)
    parts = []
    if settings.expandable_segments:
        parts.append("expandable_segments:True")
    if settings.max_split_bytes != UNLIMITED:
        parts.append(f"max_split_size_mb:{settings.max_split_bytes // MIB}")
    if settings.large_segment_bytes != default.large_segment_bytes:
        parts.append(f"large_segment_size_mb:{settings.large_segment_bytes // MIB}")
    if settings.max_non_split_rounding_bytes != max(settings.large_segment_bytes, default.max_non_split_rounding_bytes):
        parts.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding_bytes // MIB}")
    if settings.garbage_collection_threshold:
        parts.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold!r}")
    divisions = settings.roundup_divisions
    if any(divisions):
        slots = ",".join(f"{1 << slot}:{value}" for slot, value in enumerate(divisions))
        same = divisions[0] if len(set(divisions)) == 1 else f"[{slots}]"
        parts.append(f"roundup_power2_divisions:{same}")
    if settings.throw_on_cudamalloc_oom:
        parts.append("throw_on_cudamalloc_oom:True")
    if settings.reserve is not None:
        kind, value = settings.reserve
        size = repr(value) if kind == "fraction" else f"{value / GIB!r}G"
        parts.append(f"expandable_segments_reserve:{size}")
    return ",".join(parts)


def _checked(settings: Settings, given: set[str]) -> Settings:
    large = settings.large_segment_bytes
    if "max_non_split_rounding_mb" not in given and settings.max_non_split_rounding_bytes < large:
        settings = replace(settings, max_non_split_rounding_bytes=large)
    limits = {"max_split_size_mb": settings.max_split_bytes}
    limits["max_non_split_rounding_mb"] = settings.max_non_split_rounding_bytes
    for option, size in limits.items():
        if option in given and size < large:
            raise SettingsError(
                f"{option}:{size // MIB} is too small; PyTorch allows values from {large // MIB} on "
                "(large_segment_size_mb)"
            )
    return settings


class _Tokens:
    def __init__(self, text: str) -> None:
        self._words: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s", "", text))
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._words)

    def peek(self) -> str | None:
        return None if self.at_end else self._words[self._at]

    def next(self, what: str) -> str:
        if self.at_end:
            raise SettingsError(f"the settings end before {what}; expected option:value,option:value")
        self._at += 1
        return self._words[self._at - 1]

    def expect(self, sign: str, option: str) -> None:
        found = self.next(f"{quoted(sign)} of {option}")
        if found != sign:
            raise SettingsError(
                f"{quoted(found)} instead of {quoted(sign)} in {option}; expected option:value,option:value"
            )


# ---- the options: how the value of each is parsed

# A function that converts the text of an allocator option's value. It raises SettingsError for an invalid value.
_Value = Callable[[str, str], Any]


def _integer(option: str, text: str, allowed: str, *, low: int = 0, high: int = UNLIMITED) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected {allowed}")
    return int(text)


def _number(option: str, text: str, allowed: str, *, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected {allowed}")
    return value


def _whole(allowed: str, *, low: int = 0, high: int = UNLIMITED, unit: int = 1) -> _Value:
    return lambda option, text: min(_integer(option, text, allowed, low=low, high=high) * unit, UNLIMITED)


def _real(allowed: str, fits: Callable[[float], bool]) -> _Value:
    return lambda option, text: _number(option, text, allowed, fits=fits)


def _boolean(option: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected True or False (case matters)")
    return text == "True"


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _backend(option: str, text: str) -> str:
    if text not in ("native", "cudaMallocAsync"):
        raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected native or cudaMallocAsync")
    return text


def _threads(option: str, text: str) -> int:
    value = _integer(option, text, "a power of two up to 128", low=1, high=128)
    if not _is_power_of_two(value):
        raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected a power of two up to 128")
    return value


def _read_roundup(settings: Settings, option: str, tokens: _Tokens) -> Settings:
    text = tokens.next(f"the value of {option}")
    if text != "[":
        value = _integer(option, text, "a power of two, or a list such as [256:1,512:2,>:8]")
        if not _is_power_of_two(value):
            raise SettingsError(f"{option}:{shortened(text)} is not allowed; expected a power of two")
        return replace(settings, roundup_divisions=(value,) * _SLOTS)
    slots = [0] * _SLOTS
    is_first, settled = True, 0
    while tokens.peek() != "]":
        size = tokens.next(f"']' of {option}")
        tokens.expect(":", option)
        value = _integer(option, tokens.next(f"the divisions of {size}"), "divisions that are 0 or a power of two")
        if value and not _is_power_of_two(value):
            raise SettingsError(
                f"{option}:[{shortened(size)}:{shortened(value)}] is not allowed; "
                "expected divisions that are a power of two"
            )
        if size == ">":
            slots[settled + 1 :] = [value] * (_SLOTS - settled - 1)
        else:
            mib = _integer(option, size, "sizes in MiB that are a power of two")
            if not _is_power_of_two(mib):
                raise SettingsError(
                    f"{option}:[{shortened(size)}:{shortened(value)}] is not allowed; "
                    "expected sizes that are a power of two"
                )
            settled = min(mib.bit_length() - 1, _SLOTS - 1)
            if is_first:
                slots[:settled] = [value] * settled
            slots[settled] = value
        is_first = False
        if tokens.peek() != "]":
            tokens.expect(",", option)
    tokens.expect("]", option)
    return replace(settings, roundup_divisions=tuple(slots))


def _reserve_spec(option: str, text: str) -> tuple[str, float]:
    number = text[:-1] if text[-1:] in "Gg" else text
    allowed = "a fraction such as 0.5, or a size such as 40G"
    value = _number(option, number, allowed, fits=lambda value: 0 < value < math.inf)
    return ("fraction", value) if number == text else ("bytes", value * GIB)


# The option applies to streams that a program has assigned to classes. Recordings do not contain the classes, so this
# option changes nothing.
def _read_reserve_by_class(settings: Settings, option: str, tokens: _Tokens) -> Settings:
    tokens.expect("[", option)
    while tokens.peek() != "]":
        tokens.next(f"']' of {option}")
        tokens.expect(":", option)
        _reserve_spec(option, tokens.next(f"a value of {option}"))
        if tokens.peek() == ",":
            tokens.next("','")
    tokens.expect("]", option)
    return settings


_MIB: Final = _whole("a whole number of MiB", unit=MIB)
# The field of `Settings` that each allocator option sets, and the function that reads the option's value. The field is
# "" if the option does not change the use of device memory.
_VALUES: Final[dict[str, tuple[str, _Value]]] = {
    "backend": ("backend", _backend),
    "max_split_size_mb": ("max_split_bytes", _MIB),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _MIB),
    "large_segment_size_mb": (
        "large_segment_bytes",
        _whole("a whole number of MiB above 10", low=11, high=UNLIMITED // MIB, unit=MIB),
    ),
    "garbage_collection_threshold": (
        "garbage_collection_threshold",
        _real("a number above 0 and below 1", lambda value: 0 < value < 1),
    ),
    "per_process_memory_fraction": (
        "per_process_memory_fraction",
        _real("a number from 0 to 1", lambda value: 0 <= value <= 1),
    ),
    "expandable_segments": ("expandable_segments", _boolean),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _boolean),
    "expandable_segments_reserve": ("reserve", _reserve_spec),
    "release_lock_on_cudamalloc": ("", _boolean),
    "release_lock_on_hipmalloc": ("", _boolean),
    "graph_capture_record_stream_reuse": ("", _boolean),
    "pinned_use_background_threads": ("", _boolean),
    "pinned_use_cuda_host_register": ("", _boolean),
    "pinned_use_hip_host_register": ("", _boolean),
    "pinned_free_catch_all": ("", _boolean),
    "pinned_num_register_threads": ("", _threads),
    "pinned_reserve_segment_size_mb": ("", _whole("a whole number above 0", low=1)),
    "pinned_max_round_threshold_mb": ("", _whole("a whole number above 0", low=1)),
    "pinned_max_cached_size_mb": ("", _whole("a whole number above 0", low=1)),
}
# Allocator options whose value may be a list. Each function reads the list, and returns the settings with it.
_LISTS: Final[dict[str, Callable[[Settings, str, _Tokens], Settings]]] = {
    "roundup_power2_divisions": _read_roundup,
    "expandable_segments_reserve_by_class": _read_reserve_by_class,
}
