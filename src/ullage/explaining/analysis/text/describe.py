"""Turns the explanation of an error message into a printed report."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import Account
from ullage.explaining.analysis.text.explain import RankVerdict, TextExplanation
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.server_log import ServerMemory
from ullage.report.report import LabeledText, Meter, Quote, Remarks, Report, Section, SizedPart, Table, TableRow, Tone

_RANKS_SHOWN: Final = 16


def describe_text(text: TextExplanation) -> Report:
    """Return the report for the explanation of an error message.

    The headline, the sentence, the bar and the first piece of advice fit on a small terminal. Details follow with
    `--all`.
    """
    details = tuple(_details(text))
    hidden = [f"{len(text.remedies) - 1} more changes"] if len(text.remedies) > 2 else []
    hidden += ["1 more change"] if len(text.remedies) == 2 else []
    hidden += ["the message"] if text.found is not None else []
    hidden += [f"{len(text.notes)} notes" if len(text.notes) > 1 else "1 note"] if text.notes else []
    return Report(
        headline=text.headline,
        tone=_tone(text),
        subject=text.source,
        sentence=text.sentence,
        sections=tuple(_sections(text)),
        details=details,
        more=f"With --all: {', '.join(hidden)}." if hidden else "",
    )


def _tone(text: TextExplanation) -> Tone:
    if text.cause is Cause.DID_NOT_FAIL:
        return Tone.PLAIN
    is_guess = text.cause is Cause.CANNOT_TELL or text.headline.startswith("PROBABLY")
    return Tone.UNSURE if is_guess else Tone.BAD


def _sections(text: TextExplanation) -> Iterator[Section]:
    found = text.found
    if text.account is not None:
        device = found.message.device if found is not None else None
        meter = _spilt(text.account) if text.account.spilt_bytes else _card(text.account, device)
        yield replace(meter, is_compact=True)
    if found is not None and found.server is not None and (server := _server(found.server)) is not None:
        yield replace(server, is_compact=True)
    if text.remedies:
        first = text.remedies[0]
        yield LabeledText(
            label="Try first (an estimate)",
            text=_named(first),
            remark=f"because: {first.remark}" if first.remark else "",
        )
    elif text.notes:
        yield LabeledText(label="Next", text=text.notes[0])
    if found is not None:
        yield LabeledText(label="Where", text=_place(found))
    if text.ranks:
        yield _ranks(text.ranks)


def _named(remedy: Remedy) -> str:
    if remedy.setting is None or remedy.remark.startswith("export "):
        return remedy.name
    return f"set PYTORCH_CUDA_ALLOC_CONF={remedy.setting} before the program starts"


def _details(text: TextExplanation) -> Iterator[Section]:
    if len(text.remedies) > 1:
        yield Table(
            title="What else may help: estimates from the figures in the message, not proved",
            columns=("change", "because"),
            rows=tuple(TableRow(cells=(remedy.name, remedy.remark)) for remedy in text.remedies[1:]),
        )
    if text.facts:
        items = (
            f"{fact.kind}: {fact.text} ({fact.certainty}{'; this decided' if fact.has_decided else ''})"
            for fact in text.facts
        )
        yield Remarks(title="What was read, and what decided", items=tuple(items))
    if text.found is not None:
        yield Quote(title="The error message", text=text.found.message.text)
    if text.notes:
        yield Remarks(title="Notes", items=text.notes)


def _place(found: FoundMessage) -> str:
    places = [f"line {found.row} of the input"]
    if found.rank is not None:
        places.append(found.rank)
    if found.place is not None:
        places.append(f"{found.place}: {found.statement}" if found.statement else found.place)
    elif found.frames:  # no frame of the user's code: the innermost frame of a library
        frame = found.frames[0]
        places.append(f"{frame.place}: {frame.statement}" if frame.statement else frame.place)
    return ", ".join(places)


def _card(account: Account, device: int | None) -> Meter:
    parts = [
        SizedPart(label="allocated", size_bytes=account.allocated_bytes, remark="by PyTorch's tensors"),
        SizedPart(label="cached", size_bytes=account.cached_bytes, remark="by PyTorch, in pieces of unknown size"),
        SizedPart(
            label="context, libraries", size_bytes=account.outside_bytes, remark="this process, outside of PyTorch"
        ),
        SizedPart(label="other processes", size_bytes=account.others_bytes),
        SizedPart(
            label="not attributed", size_bytes=account.unnamed_bytes, remark="context, libraries, other processes"
        ),
    ]
    return Meter(
        title=f"Memory of {f'GPU {device}' if device is not None else 'the GPU'}, as rounded in the message",
        total_bytes=account.total_bytes,
        total_label="total",
        parts=tuple(part for part in parts if part.size_bytes),
        rest_label="free",
    )


def _spilt(account: Account) -> Meter:
    return Meter(
        title=f"Memory that PyTorch counts, on a GPU with {text_of_bytes(account.total_bytes)}",
        total_bytes=account.reserved_bytes,
        total_label="reserved by PyTorch",
        parts=(
            SizedPart(
                label="on the GPU",
                size_bytes=account.reserved_bytes - account.spilt_bytes,
                remark="all used memory of the GPU",
            ),
            SizedPart(label="not on the GPU", size_bytes=account.spilt_bytes, remark="shared GPU memory, or released"),
        ),
    )


def _server(server: ServerMemory) -> Meter | None:
    kv_cache = max(0, server.kv_cache_bytes or 0)
    both = server.peak_torch_bytes if server.weights_bytes is None and server.activation_bytes is None else None
    parts = (
        SizedPart(label="weights", size_bytes=server.weights_bytes or 0),
        SizedPart(label="weights, activations", size_bytes=both or 0),
        SizedPart(label="non-torch", size_bytes=server.non_torch_bytes or 0, remark="context, NCCL, libraries"),
        SizedPart(label="activation peak", size_bytes=server.activation_bytes or 0, remark="of the largest batch"),
        SizedPart(label="CUDA graphs", size_bytes=server.graphs_bytes or 0),
        SizedPart(label="KV cache", size_bytes=kv_cache, remark="the rest of the budget"),
    )
    told = tuple(part for part in parts if part.size_bytes > 0)
    whole = sum(part.size_bytes for part in told)
    if len(told) < 2:
        return None
    total = server.total_bytes if server.total_bytes is not None and server.total_bytes >= whole else None
    budget = f", budget {server.utilization:g} of the GPU" if server.utilization is not None else ""
    return Meter(
        title=f"Memory that {server.program} planned to use on one GPU, from its log{budget}",
        total_bytes=total or whole,
        total_label="the GPU" if total else "in all",
        parts=told,
        rest_label=f"not planned by {server.program}" if total else "",
    )


def _ranks(ranks: tuple[RankVerdict, ...]) -> Table:
    shown = ranks[:_RANKS_SHOWN]
    more = f" (the first {len(shown)} of {len(ranks)})" if len(ranks) > len(shown) else ""
    return Table(
        title=f"The cause for each rank, from its own message{more}",
        columns=("rank", "cause", "requested", "free"),
        rows=tuple(
            TableRow(
                cells=(
                    verdict.rank,
                    verdict.cause.phrase,
                    _size(verdict.message.requested_bytes),
                    _size(verdict.message.free_bytes),
                ),
                tone=Tone.PLAIN if verdict.cause is ranks[0].cause else Tone.UNSURE,
            )
            for verdict in shown
        ),
    )


def _size(size: int | None) -> str:
    return text_of_bytes(size) if size is not None else ""
