"""Parses the memory figures that vLLM and SGLang log when they start, such as weights and KV cache."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ullage.recorded.message.figure import bytes_of, number_of

# The largest number of lines with memory figures that are read from a model server's log. A server that starts logs
# fewer such lines.
_MOST_LINES: Final = 10_000
_LONGEST: Final = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """The memory figures that one worker of a model server has logged. Missing figures are None."""

    program: str
    total_bytes: int | None = None
    """The total memory of the GPU in bytes."""
    utilization: float | None = None
    """The fraction of the GPU's memory that vLLM may use (gpu_memory_utilization)."""
    free_at_start_bytes: int | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    """The bytes outside PyTorch's allocator, used by the CUDA context, NCCL and libraries."""
    peak_torch_bytes: int | None = None
    """The bytes of weights and peak activations together, which vLLM 0.6 logs as one figure."""
    activation_bytes: int | None = None
    """The peak bytes of activations for the largest batch."""
    graphs_bytes: int | None = None
    kv_cache_bytes: int | None = None
    """The bytes that remain for vLLM's KV cache. Negative if everything else already exceeds vLLM's memory budget."""
    kv_cache_set_bytes: int | None = None
    """The size of the KV cache that the user set with vLLM's `kv_cache_memory_bytes`. It overrides
    gpu_memory_utilization.
    """
    available_bytes: int | None = None
    """The bytes that were free on the GPU after SGLang loaded the weights."""

    @property
    def taken_bytes(self) -> int | None:
        """The bytes in use before the KV cache is allocated, or None if unknown."""
        if self.weights_bytes is not None and self.activation_bytes is not None:
            peak = self.weights_bytes + self.activation_bytes
        elif self.peak_torch_bytes is not None:
            peak = self.peak_torch_bytes
        else:
            return None
        return peak + (self.non_torch_bytes or 0) + (self.graphs_bytes or 0)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("SIZE", r"-?NUMBER ?Gi?B").replace("NUMBER", r"\d[\d.]{0,20}"), re.ASCII)


_SIZES: Final = (
    ("total_gpu_memory", "vLLM", _pattern(r"total_gpu_memory[ =]\(?(?P<total>SIZE)")),
    ("total_gpu_memory", "vLLM", _pattern(r"gpu_memory_utilization[ =]\(?(?P<utilization>NUMBER)")),
    ("model weights take", "vLLM", _pattern(r"model weights take\s+(?P<weights>SIZE)")),
    ("non_torch_memory", "vLLM", _pattern(r"non_torch_memory(?: takes |=|\s+)(?P<non_torch>SIZE)")),
    ("activation peak memory", "vLLM", _pattern(r"activation peak memory(?: takes|)\s+(?P<activation>SIZE)")),
    ("reserved for KV Cache", "vLLM", _pattern(r"reserved for KV Cache is (?P<kv_cache>SIZE)")),
    ("peak_torch_memory", "vLLM", _pattern(r"peak_torch_memory=(?P<peak_torch>SIZE)")),
    ("kv_cache_size=", "vLLM", _pattern(r"kv_cache_size=(?P<kv_cache>SIZE)")),
    ("available_kv_cache_memory", "vLLM", _pattern(r"available_kv_cache_memory\s+(?P<kv_cache>SIZE)")),
    ("Available KV cache memory", "vLLM", _pattern(r"Available KV cache memory: (?P<kv_cache>SIZE)")),
    (
        "as specified by kv_cache_memory_bytes",
        "vLLM",
        _pattern(r"reserved (?P<kv_cache_set>SIZE) memory for KV Cache"),
    ),
    ("Loading model weights took", "vLLM", _pattern(r"Loading model weights took (?P<weights>SIZE)")),
    ("Model loading took", "vLLM", _pattern(r"Model loading took (?P<weights>SIZE)")),
    ("Estimated CUDA graph memory", "vLLM", _pattern(r"Estimated CUDA graph memory: (?P<graphs>SIZE)")),
    ("Graph capturing finished in", "vLLM", _pattern(r"Graph capturing finished in \S+ secs?, took (?P<graphs>SIZE)")),
    (
        "Desired GPU memory utilization is",
        "vLLM",
        _pattern(r"utilization is \((?P<utilization>NUMBER), SIZE\)"),
    ),
    ("Actual usage", "vLLM", _pattern(r"Actual usage.{0,40}?(?P<weights>SIZE) for (?:weights?|consumed)")),
    ("for peak activation", "vLLM", _pattern(r"(?P<activation>SIZE) for peak activation")),
    ("for non-torch memory", "vLLM", _pattern(r"(?P<non_torch>SIZE) for non-torch memory")),
    ("Graph memory", "vLLM", _pattern(r"(?P<graphs>SIZE) for \w{3,8} ?Graph memory")),
    ("Current kv cache memory", "vLLM", _pattern(r"Current kv cache memory in use is (?P<kv_cache>SIZE)")),
    ("Load weight end", "SGLang", _pattern(r"avail mem=(?P<available>SIZE), mem usage=(?P<weights>SIZE)")),
    ("KV Cache is allocated", "SGLang", _pattern(r"K size: (?P<kv_cache>SIZE), V size: (?P<kv_cache_too>SIZE)")),
    ("apture cuda graph end", "SGLang", _pattern(r"mem usage=(?P<graphs>SIZE)")),
)
_AT_START: Final = _pattern(r"Free memory on device[^(\n]{0,12}\((?P<free>NUMBER)/(?P<total>NUMBER) GiB\) on startup\.")
_NEW_START: Final = ("Initializing a V", "Initializing an LLM engine")
_HEADS: Final = tuple(dict.fromkeys(head for head, _, _ in _SIZES))
_ANY_HEAD: Final = re.compile("|".join(map(re.escape, (*_HEADS, *_NEW_START))))


@dataclass(slots=True)
class ServerLog:
    """The memory figures that a model server has logged so far, for each worker process."""

    workers: dict[str | None, ServerMemory] = field(default_factory=dict)
    _lines: int = 0

    def read(self, text: str, begin: int, end: int, rank_at: Callable[[str, int], str | None]) -> None:
        """Parse the memory figures in some lines of a model server's log.

        Args:
            text: the log.
            begin: the position of the first line.
            end: the position after the last line.
            rank_at: a function that returns the rank or worker that wrote a line. Its arguments are the log and the
                position of the line.
        """
        at = begin
        while self._lines < _MOST_LINES and (match := _ANY_HEAD.search(text, at, end)) is not None:
            self._lines += 1
            begin = text.rfind("\n", max(0, match.start() - _LONGEST), match.start()) + 1
            at = text.find("\n", match.end(), min(end, match.end() + _LONGEST))
            at = at if at >= 0 else min(end, match.end() + _LONGEST)
            rank = rank_at(text, begin)
            row = text[begin:at]
            if any(words in row for words in _NEW_START):
                self.workers.clear()  # The server starts again; the figures of the earlier start no longer apply.
            else:
                self._note(rank, row)

    def of(self, rank: str | None) -> ServerMemory | None:
        """Return the memory figures of one worker of a model server, or None if there are none."""
        own, common = self.workers.get(rank), self.workers.get(None)
        if own is None:
            # The error has no mark, or comes from the process above the workers: the last worker's figures are used for
            # all workers.
            return common or next(reversed(self.workers.values()), None)
        if common is None or common is own:
            return own
        missing = {name: getattr(common, name) for name in own.__slots__ if getattr(own, name) is None}
        return replace(own, **missing)

    def _note(self, rank: str | None, row: str) -> None:
        for head, program, pattern in _SIZES:
            match = pattern.search(row) if head in row else None
            if match is None:
                continue
            figures: dict[str, Any] = {}
            for name, text in match.groupdict().items():
                if name == "utilization":
                    figures["utilization"] = number_of(text)
                elif name == "kv_cache_set":
                    figures["kv_cache_set_bytes"] = figures["kv_cache_bytes"] = bytes_of(text)
                elif name == "kv_cache_too":
                    figures["kv_cache_bytes"] += bytes_of(text)
                else:
                    figures[f"{name}_bytes"] = bytes_of(text)
            self._add(rank, program, figures)
        if (match := _AT_START.search(row)) is not None:
            sizes = {"total_bytes": f"{match['total']} GiB", "free_at_start_bytes": f"{match['free']} GiB"}
            self._add(rank, "vLLM", {name: bytes_of(text) for name, text in sizes.items()})

    def _add(self, rank: str | None, program: str, figures: dict[str, Any]) -> None:
        memory = replace(self.workers.get(rank, ServerMemory(program=program)), **figures)
        if memory.peak_torch_bytes is not None and memory.weights_bytes is not None and memory.activation_bytes is None:
            memory = replace(memory, activation_bytes=max(0, memory.peak_torch_bytes - memory.weights_bytes))
        self.workers[rank] = memory
