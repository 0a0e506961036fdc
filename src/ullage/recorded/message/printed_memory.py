"""Parses memory figures that programs print next to an error, or without any error.

The figures come from `torch.cuda.memory_summary()` and `torch.cuda.memory_stats()`, from the tools of GPU vendors
(nvidia-smi, rocm-smi, amd-smi, npu-smi, xpu-smi), and from ComfyUI.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ullage.base.units import MIB, parse_bytes
from ullage.recorded.message.figure import bytes_of, number_of

_PREFIX_CHARACTERS: Final = 200  # before the words that begin a table, in the same line
_BLOCK_CHARACTERS: Final = 6000  # the longest table that is read; the report on a machine with 8 GPUs has 4500


class MemoryPrinter(StrEnum):
    """A function or tool that prints memory figures. The value is its name."""

    MEMORY_SUMMARY = "torch.cuda.memory_summary()"
    MEMORY_STATS = "torch.cuda.memory_stats()"
    NVIDIA_SMI = "nvidia-smi"
    ROCM_SMI = "rocm-smi"
    AMD_SMI = "amd-smi"
    NPU_SMI = "npu-smi"
    XPU_SMI = "xpu-smi"
    COMFYUI = "ComfyUI"
    LINE = "a line of the program"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProcess:
    """A process that a vendor's tool lists, with the GPU memory that it uses in bytes."""

    number: int
    name: str
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedMemory:
    """The memory figures of one GPU that a program printed. Figures that it did not print are None."""

    printer: MemoryPrinter
    row: int = 1
    """The line number in the text, counted from 1."""
    device: int | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    """The bytes that all processes use on the GPU."""
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    split_bytes: int | None = None
    """The free bytes in segments that also hold tensors. The allocator cannot return them to the driver."""
    failures: int | None = None
    """The number of out-of-memory errors that PyTorch's allocator has raised."""
    retries: int | None = None
    """The number of times that the allocator returned its cache to the driver and requested memory again."""
    processes: tuple[NamedProcess, ...] = ()
    is_async: bool = False
    """Whether the program uses the allocator cudaMallocAsync."""
    models_bytes: int | None = None
    """The bytes of the models that ComfyUI had on the GPU."""


_MOST_BYTES: Final = 1 << 50
_SUMMARY: Final = re.compile(r"PyTorch (?P<backend>\w{1,8}) memory summary, device ID (?P<device>\d{1,4})", re.ASCII)
_SUMMARY_COUNTS: Final = re.compile(r"OOMs: {0,4}(?P<failures>\d{1,12}).{0,60}retries: {0,4}(?P<retries>\d{1,12})")
_SIZE: Final = r"(\d{1,16} {0,2}(?:[KMGT]i?B|B))"
_SUMMARY_ROW: Final = re.compile(
    r"\| (?P<name>Allocated|GPU reserved|Non-releasable) memory {0,12}\| {0,12}"
    + _SIZE.replace("(", "(?P<now>", 1)
    + r" {0,6}\| {0,12}"
    + _SIZE.replace("(", "(?P<peak>", 1),
    re.ASCII,
)
_STATISTIC: Final = re.compile(
    r"\b(?P<name>(?:allocated|reserved|inactive_split)_bytes\.all\.(?:current|peak)|num_ooms|num_alloc_retries)"
    r"[\"']?\s{0,3}[:,=]\s{0,40}(?P<value>\d{1,16})\b",
    re.ASCII,
)
_STATISTIC_FIELDS: Final = {
    "allocated_bytes.all.current": "allocated_bytes",
    "allocated_bytes.all.peak": "peak_allocated_bytes",
    "reserved_bytes.all.current": "reserved_bytes",
    "reserved_bytes.all.peak": "peak_reserved_bytes",
    "inactive_split_bytes.all.current": "split_bytes",
    "num_ooms": "failures",
    "num_alloc_retries": "retries",
}
_STATISTIC_GROUPS: Final = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes", "all")
_SUMMARY_FIELDS: Final = {
    "Allocated": ("allocated_bytes", "peak_allocated_bytes"),
    "GPU reserved": ("reserved_bytes", "peak_reserved_bytes"),
    "Non-releasable": ("split_bytes", None),
}
_SMI_GPU: Final = re.compile(r"\|\s{1,4}(?P<device>\d{1,3})\s{1,4}[A-Z][^|\n]{3,60}\|", re.ASCII)
_SMI_USAGE: Final = re.compile(r"\|\s{0,10}(?P<used>\d{1,8})MiB ?/\s{0,10}(?P<total>\d{1,8})MiB\s{0,4}\|", re.ASCII)
_SMI_PROCESS: Final = re.compile(
    r"\|\s{1,6}(?P<device>\d{1,3})\s{1,6}(?:(?:N/A|\d{1,3})\s{1,6}(?:N/A|\d{1,3})\s{1,12})?(?P<number>\d{1,10})"
    r"\s{1,8}[CGM+]{1,5}\s{1,6}(?P<name>\S[^|\n]{0,80}?)\s{1,60}(?P<used>\d{1,8})MiB\s{0,4}\|",
    re.ASCII,
)
_NPU_USAGE: Final = re.compile(
    r"\|\s{0,4}\d{1,3}\s{1,30}\|\s{0,4}[\dA-Fa-f:.]{7,16}\s{1,6}\|[^|\n]{1,50}?(?P<used>\d{1,7})\s{0,4}/\s{0,4}"
    r"(?P<total>\d{4,7})\s{0,12}\|",
    re.ASCII,
)
_NPU_DEVICE: Final = re.compile(r"\|\s{0,4}(?P<device>\d{1,3})\s{1,8}(?:Ascend)?\d{3}\w{0,6}\b[^|\n]{0,30}\|", re.ASCII)
_NPU_PROCESS: Final = re.compile(
    r"\|\s{0,4}(?P<device>\d{1,3})\s{1,8}\d{1,3}\s{1,30}\|\s{0,4}(?P<number>\d{1,10})\s{1,20}\|\s{0,4}"
    r"(?P<name>\S{1,60})\s{0,40}\|\s{0,4}(?P<used>\d{1,8})\s{0,30}\|",
    re.ASCII,
)
_ROCM: Final = re.compile(
    r"GPU\[(?P<device>\d{1,3})\]\s{1,4}: (?:VRAM|vram) Total (?P<used>Used )?Memory \(B\): (?P<size>\d{1,16})", re.ASCII
)
_AMD_USAGE: Final = re.compile(
    r"^[\s|]{0,6}(?P<device>\d{1,3})\s[^\n]{0,120}?(?P<used>\d{1,7})\s{0,3}/\s{0,3}(?P<total>\d{4,7}) ?MB\b",
    re.ASCII | re.MULTILINE,
)
_XPU_USED: Final = re.compile(r"GPU Memory Used \(MiB\)\s{0,12}\|?\s{0,12}(?P<used>\d{1,8})", re.ASCII)
_COMFY_TOTAL: Final = re.compile(r"Total VRAM (?P<total>\d{1,8}) MB, total RAM \d{1,10} MB", re.ASCII)
_COMFY_ALLOCATOR: Final = re.compile(r"Device: (?:cuda|xpu):(?P<device>\d{1,3}) [^\n]{1,80}: (?P<name>\w{1,24})")
_COMFY_LOADED: Final = re.compile(
    r"loaded (?:completely|partially)(?:;? (?:[\d.e+]{1,20} MB usable, (?P<new>[\d.]{1,12}) MB loaded"
    r"|[\d.e+]{1,20} (?P<old>[\d.]{1,12})\b))"
)


_LINE_SIZE: Final = r"\d{1,7}(?:\.\d{1,6})? ?[KMGT]i?B?\b"
_LINE_ROWS: Final = 3
_LINE_ALLOCATED: Final = re.compile(
    rf"\balloc(?:ated)?\b[^\n\d]{{0,24}}(?P<after>{_LINE_SIZE})"
    rf"|(?P<before>{_LINE_SIZE}) (?:is |are |was )?(?:already )?alloc",
    re.IGNORECASE,
)
_LINE_RESERVED: Final = re.compile(
    rf"\breserved?\b[^\n\d]{{0,24}}(?P<after>{_LINE_SIZE})|(?P<before>{_LINE_SIZE}) (?:is |are |was )?reserved",
    re.IGNORECASE,
)
_LINE_GPU: Final = r"\b(?:GPU|VRAM|A100|A6000|H100|H200|B200|L40S?|V100|RTX ?\d{4})\b"
_LINE_TOTAL: Final = re.compile(
    rf"(?:\b(?:total|capacity|of)\b|{_LINE_GPU})[^\n\d]{{0,16}}(?P<after>{_LINE_SIZE})"
    rf"|(?P<before>{_LINE_SIZE}) (?:total|{_LINE_GPU})",
    re.IGNORECASE,
)


def printed_in(text: str, begin: int, until: int) -> Iterator[tuple[int, PrintedMemory]]:
    """Yield the memory figures whose first line begins between two positions of a text, each with its position.

    Args:
        text: the text. The search reads at most 6000 characters beyond `until`.
        begin: the first position.
        until: the position after the last one.
    """
    for mark, read in _READERS.items():
        at = text.find(mark, begin, until)
        while at >= 0:
            start = text.rfind("\n", max(0, at - _PREFIX_CHARACTERS), at) + 1 or max(0, at - _PREFIX_CHARACTERS)
            again = text.find(mark, at + 1, at + _BLOCK_CHARACTERS)
            for printed in read(text[start : again if again >= 0 else at + _BLOCK_CHARACTERS]):
                if _is_plausible(printed):
                    yield at, printed
            at = text.find(mark, at + 1, until)


def _is_plausible(printed: PrintedMemory) -> bool:
    """Return whether figures are possible: none is absurd, and no part is larger than its total."""
    sizes = [getattr(printed, name) for name in PrintedMemory.__slots__ if name.endswith("_bytes")]
    if any(size is not None and size >= _MOST_BYTES for size in sizes) or printed.total_bytes == 0:
        return False
    parts = (
        (printed.used_bytes, printed.total_bytes),
        (printed.allocated_bytes, printed.reserved_bytes),
        (printed.split_bytes, printed.reserved_bytes),
        (printed.allocated_bytes, printed.peak_allocated_bytes),
        (printed.reserved_bytes, printed.peak_reserved_bytes),
    )
    # Each figure of a table is rounded to its own unit.
    return all(part is None or whole is None or part <= whole + whole // 100 + MIB for part, whole in parts)


def statistics_of(values: Mapping[str, object]) -> PrintedMemory | None:
    """Return the figures in the dictionary that `torch.cuda.memory_stats()` returns, or None if it is another one.

    Nested dictionaries (`torch.cuda.memory_stats_as_nested_dict()`) are read too.
    """
    flat = dict(_flattened(values, ""))
    figures = {field: flat[name] for name, field in _STATISTIC_FIELDS.items() if name in flat}
    if "allocated_bytes" not in figures and "reserved_bytes" not in figures:
        return None
    printed = _with_figures(PrintedMemory(printer=MemoryPrinter.MEMORY_STATS), figures)
    return printed if _is_plausible(printed) else None


def _flattened(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and name in _STATISTIC_GROUPS and prefix.count(".") < 3:
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            yield f"{prefix}{name}", value


def _with_figures(printed: PrintedMemory, figures: Mapping[str, int]) -> PrintedMemory:
    known = {name: getattr(printed, name) for name in PrintedMemory.__slots__}
    return PrintedMemory(**{**known, **figures})


def _summary(block: str) -> Iterator[PrintedMemory]:
    head = _SUMMARY.search(block)
    if head is None:
        return
    figures: dict[str, int] = {"device": int(head["device"])}
    if (counts := _SUMMARY_COUNTS.search(block, head.end())) is not None:
        figures |= {name: int(value) for name, value in counts.groupdict().items()}
    for row in _SUMMARY_ROW.finditer(block, head.end()):
        now, peak = _SUMMARY_FIELDS[row["name"]]
        figures[now] = parse_bytes(row["now"])
        if peak is not None:
            figures[peak] = parse_bytes(row["peak"])
    if "allocated_bytes" in figures or "reserved_bytes" in figures:
        yield _with_figures(PrintedMemory(printer=MemoryPrinter.MEMORY_SUMMARY), figures)


def _statistics(block: str) -> Iterator[PrintedMemory]:
    figures: dict[str, int] = {}
    for found in _STATISTIC.finditer(block):
        if (field := _STATISTIC_FIELDS.get(found["name"])) is not None:
            figures.setdefault(field, int(found["value"]))
    if "allocated_bytes" in figures or "reserved_bytes" in figures:
        yield _with_figures(PrintedMemory(printer=MemoryPrinter.MEMORY_STATS), figures)


def _vendor(
    printer: MemoryPrinter,
    gpu: re.Pattern[str],
    usage: re.Pattern[str],
    process: re.Pattern[str],
    unit: int,
) -> Callable[[str], Iterator[PrintedMemory]]:
    def read(block: str) -> Iterator[PrintedMemory]:
        running: dict[int, list[NamedProcess]] = {}
        for found in process.finditer(block):
            named = NamedProcess(number=int(found["number"]), name=found["name"], used_bytes=int(found["used"]) * unit)
            running.setdefault(int(found["device"]), []).append(named)
        for index, found in enumerate(usage.finditer(block)):
            above = [int(each["device"]) for each in gpu.finditer(block, 0, found.start())]
            device = above[-1] if above else index
            yield PrintedMemory(
                printer=printer,
                device=device,
                used_bytes=int(found["used"]) * unit,
                total_bytes=int(found["total"]) * unit,
                processes=tuple(sorted(running.get(device, ()), key=lambda each: -each.used_bytes)),
            )

    return read


def _rocm(block: str) -> Iterator[PrintedMemory]:
    figures: dict[str, int] = {}
    for found in _ROCM.finditer(block):
        device = int(found["device"])
        if figures.setdefault("device", device) != device:
            break
        figures["used_bytes" if found["used"] else "total_bytes"] = int(found["size"])
    if figures:
        yield _with_figures(PrintedMemory(printer=MemoryPrinter.ROCM_SMI), figures)


def _amd(block: str) -> Iterator[PrintedMemory]:
    for found in _AMD_USAGE.finditer(block):
        yield PrintedMemory(
            printer=MemoryPrinter.AMD_SMI,
            device=int(found["device"]),
            used_bytes=int(found["used"]) * MIB,
            total_bytes=int(found["total"]) * MIB,
        )


def _xpu(block: str) -> Iterator[PrintedMemory]:
    if (found := _XPU_USED.search(block)) is not None:
        yield PrintedMemory(printer=MemoryPrinter.XPU_SMI, used_bytes=int(found["used"]) * MIB)


def _comfy(block: str) -> Iterator[PrintedMemory]:
    total = _COMFY_TOTAL.search(block)
    if total is None:
        return
    where = _COMFY_ALLOCATOR.search(block)
    sizes = [number_of(each["new"] or each["old"]) for each in _COMFY_LOADED.finditer(block)]
    yield PrintedMemory(
        printer=MemoryPrinter.COMFYUI,
        device=int(where["device"]) if where is not None else None,
        total_bytes=int(total["total"]) * MIB,
        is_async=where is not None and where["name"] == "cudaMallocAsync",
        models_bytes=int(max(sizes) * MIB) if sizes else None,
    )


def _line(block: str) -> Iterator[PrintedMemory]:
    """Yield the allocated and reserved memory that a program prints in one to three lines, with the total if stated."""
    rows = "\n".join(block.split("\n", _LINE_ROWS)[:_LINE_ROWS]).replace("memory_", "")
    if "by PyTorch" in rows or "Tried to allocate" in rows:
        return
    allocated, reserved = _LINE_ALLOCATED.search(rows), _LINE_RESERVED.search(rows)
    if allocated is None or reserved is None:
        return
    total = _LINE_TOTAL.search(rows)
    yield PrintedMemory(
        printer=MemoryPrinter.LINE,
        allocated_bytes=bytes_of(allocated["after"] or allocated["before"]),
        reserved_bytes=bytes_of(reserved["after"] or reserved["before"]),
        total_bytes=bytes_of(total["after"] or total["before"]) if total is not None else None,
    )


_READERS: Final[dict[str, Callable[[str], Iterator[PrintedMemory]]]] = {
    # The words of each key occur in the first line of the figures.
    "PyTorch CUDA memory summary": _summary,
    "PyTorch XPU memory summary": _summary,
    "allocated_bytes.all.current": _statistics,
    "NVIDIA-SMI": _vendor(MemoryPrinter.NVIDIA_SMI, _SMI_GPU, _SMI_USAGE, _SMI_PROCESS, MIB),
    "npu-smi": _vendor(MemoryPrinter.NPU_SMI, _NPU_DEVICE, _NPU_USAGE, _NPU_PROCESS, MIB),
    "VRAM Total Memory (B)": _rocm,
    "AMD-SMI": _amd,
    "MEM_USAGE": _amd,
    "GPU Memory Used (MiB)": _xpu,
    "Total VRAM ": _comfy,
    "llocated": _line,
}
