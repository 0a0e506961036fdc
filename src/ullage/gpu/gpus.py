"""A table of GPUs that are used for training. Find a GPU by name, or generate one from a memory size.

`gpus.toml` contains the properties that the driver reports, and where each was published. A partition of a GPU (MIG)
counts as a separate GPU. A GPU may have several total memory sizes, because drivers and clouds report different ones.
`Gpu.assumed` names the properties without a published source.
"""

import difflib
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import UnknownGpuError, UsageError, quoted, shortened
from ullage.base.units import GIB, KIB, MIB, TIB, is_size, parse_bytes, text_of_bytes

__all__ = ["DEFAULT_ARCHITECTURE", "Gpu", "all_gpus", "find_gpu"]

DEFAULT_ARCHITECTURE: Final = "sm_80"
"""The default architecture of a GPU that is described only by its memory size."""

_SMALLEST_BYTES: Final = 256 * MIB
_LARGEST_BYTES: Final = 16 * TIB
_LONGEST_NAME: Final = 80  # the number of characters of a given text that are compared
_LEAST_SIMILARITY: Final = 0.6  # the similarity of names above which a fourth and fifth suggestion help
_UNLIKE: Final = (0.0, 0)
_LEAST_OF_NOMINAL: Final = 0.8  # No driver keeps more than a fifth of a GPU's memory.
_MAKER: Final = ("nvidia",)
_BRANDS: Final = ("nvidia", "geforce", "tesla", "quadro")
_NOISE: Final = re.compile(r"[\s_()-]+")
_ARCHITECTURE: Final = re.compile(r"\s*(?:sm_?)?([0-9]{1,2})\.?([0-9])\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The properties of a GPU, as a CUDA program sees them.

    `total_memory_bytes` is `torch.cuda.get_device_properties(0).total_memory` on Linux. An out-of-memory message calls
    it the "total capacity". It is smaller than the advertised size, and smaller than the total that nvidia-smi shows.
    """

    name: str
    """The driver's name for the GPU, with its memory size if two GPUs have the same name."""
    driver_name: str
    """The GPU's name as torch and nvidia-smi show it."""
    aliases: tuple[str, ...]
    nominal_gib: float
    """The GPU's advertised memory size in GiB. Vendors call the unit GB."""
    total_memory_bytes: int
    other_totals: tuple[tuple[int, str], ...]
    """Total memory sizes that other drivers or clouds report for this GPU, as (bytes, source)."""
    compute_capability: tuple[int, int]
    sm_count: int
    l2_cache_bytes: int
    shared_memory_per_block_optin_bytes: int
    shared_memory_per_sm_bytes: int
    max_threads_per_sm: int
    regs_per_sm: int
    """The number of 32-bit registers in one streaming multiprocessor (SM)."""
    sources: tuple[tuple[str, str], ...]
    """The source of each property of the GPU, such as a data sheet, as (property name, source) pairs."""
    assumed: frozenset[str]
    """The fields whose values are assumed, because no published value is known."""

    @property
    def architecture(self) -> str:
        """The compiler's name for the GPU's architecture, such as "sm_89"."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    @property
    def short_name(self) -> str:
        """The usual short name of the GPU, such as "RTX 4090"."""
        return self.aliases[0] if self.aliases else self.name

    def source_of(self, figure: str) -> str:
        """Return the source of a property of the GPU, such as a data sheet.

        Raises:
            KeyError: the property has no source.
        """
        return dict(self.sources)[figure]


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Return all known GPUs, in the order of `gpus.toml`."""
    return tuple(_gpu_of_card(card) for card in _table()["card"])


def find_gpu(text: str, *, arch: str | None = None) -> Gpu:
    """Return a GPU by its name, or generate one from its size.

    Case, spaces, hyphens, underscores, parentheses, the words NVIDIA, GeForce, Tesla and Quadro, and a leading RTX do
    not matter. "T4@14.56GiB" is the T4 with another total memory size. If one of its `other_totals` is equal after
    rounding, that one is used; otherwise the given size is used.

    A size ("24GiB", "16384 MiB", "1.5TiB") gives a generic GPU with that total and the architecture `arch` ("sm_90",
    "sm90", "9.0" or "90"; default: `DEFAULT_ARCHITECTURE`). This GPU has the SM count and L2 cache of a typical GPU of
    that architecture. "24GB" means 24 GiB, as in everyday use.

    Raises:
        UnknownGpuError: no GPU, or more than one, matches the name.
        UsageError: the size or `arch` is invalid, or `arch` was given together with a GPU's name.
    """
    name, at, size = text.partition("@")
    if at and not is_size(name):
        return _with_total(find_gpu(name, arch=arch), size)
    gpu = _find_named(text)
    if gpu is None and is_size(text):
        return _gpu_of_size(text, arch=arch)
    if gpu is None:
        nearest = ", ".join(near.short_name for near in _nearest(text))
        size = text.strip() if text.strip().isdigit() else "24"
        raise UnknownGpuError(
            f"no GPU named {quoted(text)} is known; nearest: {nearest}. "
            f"List all with: ullage gpus. Or give a size, such as {size[:4]}GiB"
        )
    if arch is not None:
        raise UsageError(
            f"{gpu.short_name} has the architecture {gpu.architecture}, but {quoted(arch)} was given; "
            "leave the architecture out, or give a size in place of the name, such as 24GiB"
        )
    return gpu


# --- names -----------------------------------------------------------------------------------------------------


def _find_named(text: str) -> Gpu | None:
    # Brand words are compared at first: "Quadro RTX 6000" is one GPU, while "RTX 6000" could be four.
    gpu = _cards_by_key(drop=_MAKER).get(_key_of(text, drop=_MAKER))
    if gpu is not None:
        return gpu
    bare = _key_of(text, drop=_BRANDS)
    for key in (bare, f"rtx{bare}"):
        choices = _ambiguous().get(key)
        if choices is not None:
            raise UnknownGpuError(
                f"{quoted(text)} is the name of more than one GPU; expected one of: {', '.join(choices)}. "
                f"Or give a size, such as {find_gpu(choices[0]).nominal_gib:g}GiB"
            )
        gpu = _cards_by_key(drop=_BRANDS).get(key)
        if gpu is not None:
            return gpu
    return None


def _nearest(text: str) -> list[Gpu]:
    key = _key_of(text[:_LONGEST_NAME], drop=_BRANDS)
    wanted = f"rtx{key}" if key[:1].isdigit() else key
    # difflib does not detect swapped digits ("4900" is as far from 4060 as from 4090), so common letters are compared
    # next.
    likeness: dict[str, tuple[float, int]] = {}
    for name, gpu in _cards_by_key(drop=_BRANDS).items():
        ratio = difflib.SequenceMatcher(a=name, b=wanted, autojunk=False).ratio()
        shared = (Counter(name) & Counter(wanted)).total()
        likeness[gpu.name] = max(likeness.get(gpu.name, _UNLIKE), (ratio, shared))
    ranked = list(reversed(all_gpus()))  # Of equally similar names, the newer and larger GPU comes first.
    ranked.sort(key=lambda gpu: likeness.get(gpu.name, _UNLIKE), reverse=True)
    return ranked[:3] + [gpu for gpu in ranked[3:5] if likeness.get(gpu.name, _UNLIKE)[0] >= _LEAST_SIMILARITY]


def _key_of(text: str, *, drop: tuple[str, ...]) -> str:
    key = _NOISE.sub("", text.casefold())
    for word in drop:
        key = key.replace(word, "")
    return key


@cache
def _cards_by_key(*, drop: tuple[str, ...]) -> dict[str, Gpu]:
    cards = {_key_of(name, drop=drop): gpu for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)}
    return {key: gpu for key, gpu in cards.items() if key not in _ambiguous()}


@cache
def _ambiguous() -> dict[str, tuple[str, ...]]:
    return {_key_of(name, drop=_BRANDS): tuple(choices) for name, choices in _table()["ambiguous"].items()}


def _with_total(gpu: Gpu, size: str) -> Gpu:
    total_bytes = parse_bytes(size)
    readings = dict(((gpu.total_memory_bytes, gpu.source_of("total_memory_bytes")), *gpu.other_totals))
    # Error messages show GiB with two decimals, and so do users.
    nearest = min(readings, key=lambda reading: abs(reading - total_bytes))
    read = nearest if abs(nearest - total_bytes) <= GIB // 200 else None
    if read is None and not _LEAST_OF_NOMINAL * gpu.nominal_gib * GIB <= total_bytes <= gpu.nominal_gib * GIB:
        raise UsageError(
            f"no {gpu.short_name} has {size.strip()}; expected one of: "
            f"{', '.join(text_of_bytes(reading) for reading in sorted(readings))}, or a total near them"
        )
    source = "given by the user" if read is None else readings[read]
    return replace(
        gpu,
        total_memory_bytes=total_bytes if read is None else read,
        sources=tuple((figure, source if figure == "total_memory_bytes" else told) for figure, told in gpu.sources),
        assumed=gpu.assumed - ({"total_memory_bytes"} if read != gpu.total_memory_bytes else set()),
    )


# --- sizes and architectures -----------------------------------------------------------------------------------


def _gpu_of_size(text: str, *, arch: str | None) -> Gpu:
    total_bytes = parse_bytes(text)
    if not _SMALLEST_BYTES <= total_bytes <= _LARGEST_BYTES:
        raise UsageError(
            f"a GPU of {shortened(text.strip())} is not possible; expected 256 MiB to 16 TiB, such as 24GiB"
        )
    capability = _capability_of(DEFAULT_ARCHITECTURE if arch is None else arch)
    typical = find_gpu(_table()["architecture"][capability]["typical"])
    number, unit = text_of_bytes(total_bytes).split()
    name = f"{float(number):g} {unit} GPU ({typical.architecture})"
    as_typical = f"as {typical.short_name}, which is typical of {typical.architecture}"
    new_sources = {
        "total_memory_bytes": "given by the user",
        "compute_capability": f"{DEFAULT_ARCHITECTURE} unless given" if arch is None else "given by the user",
        "sm_count": as_typical,
        "l2_cache_bytes": as_typical,
    }
    return replace(
        typical,
        name=name,
        driver_name=name,
        aliases=(),
        nominal_gib=total_bytes / GIB,
        total_memory_bytes=total_bytes,
        other_totals=(),
        sources=tuple((figure, new_sources.get(figure, source)) for figure, source in typical.sources),
        assumed=frozenset({"sm_count", "l2_cache_bytes"} | ({"compute_capability"} if arch is None else set())),
    )


def _capability_of(arch: str) -> str:
    match = _ARCHITECTURE.fullmatch(arch)
    capability = f"{match[1]}.{match[2]}" if match else ""
    known: dict[str, Any] = _table()["architecture"]
    if capability not in known:
        names = ", ".join("sm_" + name.replace(".", "") for name in known)
        raise UsageError(
            f"the architecture {quoted(arch)} is unknown; expected one of: {names} (or 9.0 or 90 for sm_90)"
        )
    return capability


# --- the table -------------------------------------------------------------------------------------------------


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))


def _gpu_of_card(card: dict[str, Any]) -> Gpu:
    architecture = _table()["architecture"][card["architecture"]]
    major, minor = card["architecture"].split(".")
    source_of_figure = {
        "total_memory_bytes": card["total_source"],
        "compute_capability": "capability_list",
        "sm_count": card["sm_count_source"],
        "l2_cache_bytes": card["l2_cache_source"],
        "shared_memory_per_block_optin_bytes": architecture["source"],
        "shared_memory_per_sm_bytes": architecture["source"],
        "max_threads_per_sm": architecture["source"],
        "regs_per_sm": architecture["source"],
    }
    return Gpu(
        name=card["name"],
        driver_name=card.get("driver_name", card["name"]),
        aliases=tuple(card["aliases"]),
        nominal_gib=card["nominal_gib"],
        # The conversion is exact: the table's fractions of a MiB are multiples of 1/16.
        total_memory_bytes=int(card["total_mib"] * MIB),
        other_totals=tuple((int(mib * MIB), _text_of_source(source)) for mib, source in card.get("other_totals", ())),
        compute_capability=(int(major), int(minor)),
        sm_count=card["sm_count"],
        l2_cache_bytes=int(card["l2_cache_mib"] * MIB),
        shared_memory_per_block_optin_bytes=architecture["shared_memory_per_block_optin_kib"] * KIB,
        shared_memory_per_sm_bytes=architecture["shared_memory_per_sm_kib"] * KIB,
        max_threads_per_sm=architecture["max_threads_per_sm"],
        regs_per_sm=architecture["regs_per_sm"],
        sources=tuple((figure, _text_of_source(source)) for figure, source in source_of_figure.items()),
        assumed=frozenset(figure for figure, source in source_of_figure.items() if _kind_of(source)["assumed"]),
    )


def _kind_of(source: str) -> dict[str, Any]:
    kind: dict[str, Any] = _table()["source"][source.partition(": ")[0]]
    return kind


def _text_of_source(source: str) -> str:
    detail = source.partition(": ")[2]
    text: str = _kind_of(source)["text"]
    return f"{text}: {detail}" if detail else text
