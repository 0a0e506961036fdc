"""Uses the memory figures that a program printed: alone, or next to an error message that has no figures itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.actions import generic_actions
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.log import FoundMessage, Mention
from ullage.recorded.message.printed_growth import PrintedGrowth
from ullage.recorded.message.printed_memory import MemoryPrinter, PrintedMemory
from ullage.recorded.message.wording import MessageKind

_OF_PYTORCH: Final = (
    MemoryPrinter.MEMORY_SUMMARY,
    MemoryPrinter.MEMORY_STATS,
    MemoryPrinter.LINE,
)
_FRAGMENTED_SHARE: Final = 0.1  # of the reserved memory: the least unusable part that counts as fragmentation
_FULL_SHARE: Final = 0.9  # of the GPU's memory: PyTorch's peak from which the GPU counts as full
_BUSY_SHARE: Final = 0.9  # of the GPU's memory: the use from which a vendor's table shows a full GPU
_MOST_PROCESSES: Final = 3
_RECORD: Final = (
    "to see which code holds the memory, call torch.cuda.memory._record_memory_history() at the start and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where memory is high or the error is caught, then run ullage "
    "explain oom.pickle"
)


def judge_printed(printed: Sequence[PrintedMemory], mention: Mention | None = None) -> TextVerdict:
    """Return the verdict on a text that has memory figures but no error message.

    Args:
        printed: the figures in the order of the text; at least one.
        mention: a line that mentions an out-of-memory error in unknown words.
    """
    chosen = _chosen(printed)
    if chosen.printer not in _OF_PYTORCH:
        return _of_the_gpu(chosen)
    if mention is not None:
        return _failed(chosen, f"The text mentions an out-of-memory error (line {mention.row}).")
    return _failed(chosen, _counted(chosen)) if chosen.failures else _not_failed(chosen)


def is_of_pytorch(printed: PrintedMemory) -> bool:
    """Return whether figures are those of PyTorch's allocator, not of a GPU vendor's tool."""
    return printed.printer in _OF_PYTORCH


def _chosen(printed: Sequence[PrintedMemory]) -> PrintedMemory:
    """Return the printout to report: the last one with an out-of-memory error, or else the fullest one."""
    of_pytorch = [each for each in printed if each.printer in _OF_PYTORCH]
    failed = [each for each in of_pytorch if each.failures]
    if failed:
        return failed[-1]
    if of_pytorch:
        return max(of_pytorch, key=lambda each: each.reserved_bytes or each.allocated_bytes or 0)
    return max(printed, key=lambda each: (each.used_bytes or 0) / (each.total_bytes or 1 << 60))


def _counted(printed: PrintedMemory) -> str:
    number = printed.failures or 0
    times = "1 out-of-memory error" if number == 1 else f"{number:,} out-of-memory errors"
    retries = f" and {printed.retries:,} retries after releasing the cache" if printed.retries else ""
    return f"PyTorch counted {times}{retries} on {_name(printed)}."


def _failed(printed: PrintedMemory, counted: str) -> TextVerdict:
    reserved, allocated = printed.reserved_bytes, printed.allocated_bytes
    unusable = _unusable_bytes(printed)
    if reserved and unusable is not None and unusable >= _FRAGMENTED_SHARE * reserved:
        is_stated = printed.split_bytes is not None
        where = "but in segments that also hold tensors" if is_stated else "probably in segments that also hold tensors"
        share = f"{100 * unusable / reserved:.0f} %"
        return TextVerdict(
            cause=Cause.FRAGMENTED if is_stated else Cause.CANNOT_TELL,
            likely=Cause.FRAGMENTED,
            sentence=(
                f"{counted} {text_of_bytes(unusable)} of the {text_of_bytes(reserved)} that PyTorch had reserved "
                f"({share}) were free, {where}: the free memory was fragmented."
            ),
            remedies=(
                estimate(
                    "expandable_segments:True",
                    f"makes most of the {text_of_bytes(unusable)} usable",
                ),
            ),
            notes=(_RECORD,),
        )
    held = f" Tensors used {text_of_bytes(allocated)}" if allocated is not None else ""
    of = f" of the {text_of_bytes(reserved)} that PyTorch had reserved" if held and reserved else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL if held and of else Cause.CANNOT_TELL,
        sentence=f"{counted}{held}{of}{'; little of it was fragmented.' if of else '.' if held else ''}",
        remedies=(
            estimate(
                "a smaller batch, or activation checkpointing",
                "the figures do not show which request failed; they are from the time of the printout",
            ),
        ),
        notes=(_RECORD,),
    )


def _not_failed(printed: PrintedMemory) -> TextVerdict:
    parts = []
    if printed.allocated_bytes is not None:
        peak = printed.peak_allocated_bytes
        at_most = f" (at most {text_of_bytes(peak)})" if peak is not None and peak != printed.allocated_bytes else ""
        parts.append(f"tensors use {text_of_bytes(printed.allocated_bytes)}{at_most}")
    if printed.reserved_bytes is not None:
        parts.append(f"PyTorch has reserved {text_of_bytes(printed.reserved_bytes)}")
    unusable = _unusable_bytes(printed)
    notes = [_RECORD]
    if printed.reserved_bytes and unusable is not None and unusable >= _FRAGMENTED_SHARE * printed.reserved_bytes:
        where = "free in segments that also hold tensors" if printed.split_bytes is not None else "not used by tensors"
        condition = "" if printed.split_bytes is not None else "if it is fragmented, "
        notes.insert(
            0,
            f"{text_of_bytes(unusable)} of the reserved memory are {where}; "
            f"{condition}expandable_segments:True makes most of this memory usable",
        )
    counted = (
        "PyTorch has counted no out-of-memory error" if printed.failures == 0 else "The text has no out-of-memory error"
    )
    if (full := _full_of_cache(printed, counted)) is not None:
        return full
    return TextVerdict(
        cause=Cause.DID_NOT_FAIL,
        sentence=f"{counted}. On {_name(printed)}, {', '.join(parts)}.",
        notes=tuple(notes),
    )


def _full_of_cache(printed: PrintedMemory, counted: str) -> TextVerdict | None:
    """Return the verdict on a GPU that PyTorch's reserved memory fills although tensors use less. Otherwise, None."""
    total, reserved, unusable = printed.total_bytes, printed.reserved_bytes, _unusable_bytes(printed)
    if not total or not reserved or unusable is None or printed.failures is not None:
        return None
    if reserved < _FULL_SHARE * total or unusable < _FRAGMENTED_SHARE * reserved:
        return None
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        likely=Cause.FRAGMENTED,
        sentence=(
            f"{counted}, but the GPU is full: PyTorch has reserved {text_of_bytes(reserved)} of "
            f"{text_of_bytes(total)}, and tensors do not use {text_of_bytes(unusable)} of it."
        ),
        remedies=(estimate("expandable_segments:True", f"makes most of the {text_of_bytes(unusable)} usable"),),
        notes=(_RECORD,),
    )


def _of_the_gpu(printed: PrintedMemory) -> TextVerdict:
    used, total = printed.used_bytes, printed.total_bytes
    if used is None or total is None:
        amount = f"{text_of_bytes(total)} in total" if total is not None else f"{text_of_bytes(used or 0)} in use"
        return TextVerdict(
            cause=Cause.DID_NOT_FAIL,
            sentence=f"The text has no out-of-memory error. On {_name(printed)}: {amount} ({printed.printer}).",
            notes=("give the text of the error too", _RECORD),
        )
    return TextVerdict(
        cause=Cause.DID_NOT_FAIL,
        sentence=(
            f"The text has no out-of-memory error. On {_name(printed)}, {text_of_bytes(used)} of "
            f"{text_of_bytes(total)} are in use ({printed.printer}){_by(printed)}."
        ),
        notes=("give the text of the error too", _RECORD),
    )


def with_printed(
    verdict: TextVerdict, found: FoundMessage, printed: Sequence[PrintedMemory], situation: Situation
) -> TextVerdict:
    """Return the verdict on an error message, improved by the figures that the program printed near it.

    The figures decide only if the message itself has none.
    """
    message = found.message
    if message.kind not in (MessageKind.ALLOCATOR, MessageKind.DRIVER) or not printed:
        return verdict
    near = [each for each in printed if message.device is None or each.device in (None, message.device)]
    near.sort(key=lambda each: abs(each.row - found.row))
    statistics = next((each for each in near if each.printer in _OF_PYTORCH), None)
    table = next((each for each in near if each.used_bytes is not None and each.total_bytes is not None), None)
    if table is not None and _is_busy(table) and (of_table := _with_table(verdict, message.kind, table)) is not None:
        return of_table
    if message.total_bytes is not None or message.allocated_bytes is not None:
        return verdict
    total = next((each.total_bytes for each in near if each.total_bytes is not None), None)
    if statistics is not None:
        peak = max(statistics.peak_reserved_bytes or 0, statistics.reserved_bytes or 0)
        if total is not None and peak >= _FULL_SHARE * total:
            return _full(verdict, statistics, peak, total, situation)
        if peak:
            return replace(verdict, notes=(_figures(statistics, total), *verdict.notes))
    if table is not None:
        return replace(verdict, notes=(_table_sentence(table).rstrip("."), *verdict.notes))
    models = next((each.models_bytes for each in near if each.models_bytes), None)
    if total is not None:
        held = f", of which models held {text_of_bytes(models)}" if models else ""
        note = f"the GPU has {text_of_bytes(total)}{held} ({near[0].printer}, line {near[0].row})"
        return replace(verdict, notes=(note, *verdict.notes))
    return verdict


JUST_FIGURES: Final = TextVerdict(
    cause=Cause.DID_NOT_FAIL, sentence="The text has memory figures, but no out-of-memory error.", notes=(_RECORD,)
)
"""The verdict on a text that has figures in no form that ullage reads in full."""
_FIND_A_LEAK: Final = (
    "find what keeps tensors from step to step: losses or outputs collected without .item() or .detach(), caches, or "
    "state kept after saving a checkpoint or evaluating"
)
_GROWS_WITH: Final = (Cause.TRULY_FULL, Cause.FRAGMENTED, Cause.CANNOT_TELL, Cause.DID_NOT_FAIL)


def with_growth_in_words(verdict: TextVerdict, found: FoundMessage) -> TextVerdict:
    """Return the verdict on an error in a text that says that memory keeps growing, which suggests a memory leak."""
    message = found.message
    is_one_request = message.total_bytes is not None and (message.requested_bytes or 0) * 2 >= message.total_bytes
    if "growth in words" not in found.context or is_one_request or verdict.cause not in _GROWS_WITH:
        return verdict
    if verdict.likely in (Cause.HOST_MEMORY, Cause.UNIFIED_MEMORY, Cause.BOGUS_SIZE):
        return verdict
    return replace(
        verdict,
        likely=Cause.LEAK,
        sentence=f"{verdict.sentence} The text says that memory keeps growing.",
        remedies=(
            estimate(_FIND_A_LEAK, "memory that grows in a loop fills any GPU; a smaller batch only delays the error"),
            *verdict.remedies,
        ),
    )


def with_growth(verdict: TextVerdict, growth: PrintedGrowth | None) -> TextVerdict:
    """Return the verdict on a text whose memory figures may grow from line to line, which suggests a memory leak."""
    if (
        growth is None
        or verdict.cause not in _GROWS_WITH
        or verdict.likely in (Cause.HOST_MEMORY, Cause.UNIFIED_MEMORY)
    ):
        return verdict
    return replace(
        verdict,
        likely=Cause.LEAK,
        sentence=(
            f"{verdict.sentence} Memory grew from {text_of_bytes(growth.first_bytes)} to "
            f"{text_of_bytes(growth.last_bytes)} in {growth.count} lines of the log (lines {growth.row} to "
            f"{growth.last_row})."
        ),
        remedies=(
            estimate(
                _FIND_A_LEAK,
                f"{text_of_bytes(growth.last_bytes - growth.first_bytes)} more than at the beginning; a leak needs "
                "this, a smaller batch only delays the error",
            ),
            *verdict.remedies,
        ),
        notes=(*(note for note in verdict.notes if "_record_memory_history" not in note), _RECORD),
    )


def _with_table(verdict: TextVerdict, kind: MessageKind, table: PrintedMemory) -> TextVerdict | None:
    """Return the verdict with the processes of a vendor's table, if others may hold the memory. Otherwise, None."""
    if verdict.cause is not Cause.OTHER_PROCESS and kind is not MessageKind.DRIVER:
        return None
    remedies = verdict.remedies
    if table.processes:
        first = table.processes[0]
        end = estimate(
            f"end {first.name} (process {first.number}) if it is not this program, or use another GPU",
            f"it holds {text_of_bytes(first.used_bytes)}",
        )
        remedies = (end, *remedies)
    likely = Cause.OTHER_PROCESS if verdict.cause is not Cause.OTHER_PROCESS else None
    sentence = f"{verdict.sentence} {_table_sentence(table)}"
    return replace(verdict, likely=likely, sentence=sentence, remedies=remedies)


def _full(
    verdict: TextVerdict, statistics: PrintedMemory, peak_bytes: int, total_bytes: int, situation: Situation
) -> TextVerdict:
    asked = verdict.sentence.split(";")[0].rstrip(".")
    now = statistics.allocated_bytes
    later = (
        f" When {statistics.printer} was printed, tensors used only {text_of_bytes(now)}: most memory had been "
        "released by then."
        if now is not None and now < peak_bytes // 2
        else ""
    )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"{asked}. PyTorch's reserved memory had reached {text_of_bytes(peak_bytes)} of the GPU's "
            f"{text_of_bytes(total_bytes)} ({statistics.printer}, line {statistics.row}).{later}"
        ),
        remedies=tuple(generic_actions(situation, f"the peak was {100 * peak_bytes / total_bytes:.0f} % of the GPU")),
        notes=verdict.notes,
    )


def _figures(statistics: PrintedMemory, total_bytes: int | None) -> str:
    peak = max(statistics.peak_reserved_bytes or 0, statistics.reserved_bytes or 0)
    of = f" of the GPU's {text_of_bytes(total_bytes)}" if total_bytes is not None else ""
    return (
        f"PyTorch's reserved memory had reached {text_of_bytes(peak)}{of} ({statistics.printer}, line {statistics.row})"
    )


def _is_busy(table: PrintedMemory) -> bool:
    return (
        table.used_bytes is not None
        and table.total_bytes is not None
        and (table.used_bytes >= _BUSY_SHARE * table.total_bytes)
    )


def _table_sentence(table: PrintedMemory) -> str:
    return (
        f"{table.printer} (line {table.row}) shows {text_of_bytes(table.used_bytes or 0)} of "
        f"{text_of_bytes(table.total_bytes or 0)} in use on {_name(table)}{_by(table)}."
    )


def _by(printed: PrintedMemory) -> str:
    named = [
        f"{each.name} (process {each.number}) {text_of_bytes(each.used_bytes)}"
        for each in printed.processes[:_MOST_PROCESSES]
    ]
    if len(printed.processes) > _MOST_PROCESSES:
        named.append(f"{len(printed.processes) - _MOST_PROCESSES} more")
    return f": {', '.join(named)}" if named else ""


def _unusable_bytes(printed: PrintedMemory) -> int | None:
    if printed.split_bytes is not None:
        return printed.split_bytes
    if printed.reserved_bytes is None or printed.allocated_bytes is None:
        return None
    return max(0, printed.reserved_bytes - printed.allocated_bytes)


def _name(printed: PrintedMemory) -> str:
    kind = "NPU" if printed.printer is MemoryPrinter.NPU_SMI else "GPU"
    return f"{kind} {printed.device}" if printed.device is not None else f"the {kind}"


def evidence_of(printed: Sequence[PrintedMemory]) -> Iterator[tuple[str, int]]:
    """Yield the name and value of each figure of the printout that decides, for the JSON report."""
    chosen = _chosen(printed)
    for name in (
        *("total_bytes", "used_bytes", "allocated_bytes", "peak_allocated_bytes"),
        *("reserved_bytes", "peak_reserved_bytes", "split_bytes", "failures", "retries"),
    ):
        value = getattr(chosen, name)
        if value is not None:
            yield name, value
