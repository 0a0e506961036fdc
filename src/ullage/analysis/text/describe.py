"""Arrange the explanation of a text into a report: what first, in which words."""

from collections.abc import Iterator

from ullage.analysis.cause import Cause
from ullage.analysis.text.account import Account
from ullage.analysis.text.explain import TextExplanation
from ullage.report.report import Meter, Quote, Remarks, Report, Section, SizedPart, Table, TableRow, Tone


def describe_text(text: TextExplanation) -> Report:
    """Make the report of a text's explanation."""
    explanation = text.explanation
    return Report(
        headline=explanation.cause.value.replace("_", " ").upper(),
        tone=Tone.UNSURE if explanation.cause is Cause.CANNOT_TELL else Tone.BAD,
        subject=explanation.source,
        sentence=explanation.sentence,
        sections=tuple(_sections(text)),
    )


def _sections(text: TextExplanation) -> Iterator[Section]:
    explanation, found = text.explanation, text.found
    if text.account is not None:
        yield _card(text.account, found.message.device)
    if explanation.remedies:
        yield Table(
            title="What may help: estimates from the figures of the text, not proved",
            columns=("change", "because"),
            rows=tuple(TableRow(cells=(remedy.name, remedy.remark)) for remedy in explanation.remedies),
        )
    places = [f"line {found.row} of the text"]
    if found.rank is not None:
        places.append(found.rank)
    if found.place is not None:
        places.append(f"{found.place}: {found.statement}" if found.statement else found.place)
    yield Quote(title="What it said", text=found.message.text, place=", ".join(places))
    yield Remarks(title="To know", items=explanation.notes)


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
        title=f"The card{f' {device}' if device is not None else ''}, as the text rounds it",
        total_bytes=account.total_bytes,
        total_label="total",
        parts=tuple(part for part in parts if part.size_bytes),
        rest_label="free",
    )
