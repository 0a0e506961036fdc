"""Explains an out-of-memory error from its message or a log.

A message has sums but no addresses. It can show that enough memory was free, but not which blocks divide it. Every
remedy is an estimate with its arithmetic; with a snapshot, `ullage.explaining.analysis.explain` can prove remedies.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from ullage.base.errors import UsageError, quoted
from ullage.base.units import GIB, TIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.explain import Explanation
from ullage.explaining.analysis.text.account import Account, account_of
from ullage.explaining.analysis.text.allocator.judge import judge_allocator
from ullage.explaining.analysis.text.allocator.limit import judge_preempted
from ullage.explaining.analysis.text.fact import Fact, facts_of
from ullage.explaining.analysis.text.messages import Messages
from ullage.explaining.analysis.text.other_errors import judge_other
from ullage.explaining.analysis.text.printed import (
    JUST_FIGURES,
    evidence_of,
    is_of_pytorch,
    judge_printed,
    with_growth,
    with_growth_in_words,
    with_printed,
)
from ullage.explaining.analysis.text.programs.judge import judge_program, libraries_bytes, within_a_program
from ullage.explaining.analysis.text.programs.others import of_stable_diffusion
from ullage.explaining.analysis.text.situation import situation_of
from ullage.explaining.analysis.text.verdict import TextVerdict, headline_of
from ullage.recorded.message.log import Found, FoundMessage, Mention, pieces_of, scan
from ullage.recorded.message.message import Message
from ullage.recorded.message.printed_growth import PrintedGrowth
from ullage.recorded.message.printed_memory import PrintedMemory
from ullage.recorded.message.server_log import ServerMemory
from ullage.recorded.message.wording import MessageKind

_HARMLESS: Final = re.compile(
    r"\b(?:do not|don['\u2019]t|no need to) (?:worry|panic)\b"
    r"|\b(?:memory|oom|alloc\w*)\b[^\n]{0,80}\b"
    r"(?:can (?:safely )?be (?:safely )?ignored|safe to ignore|harmless|not an error)\b",
    re.IGNORECASE,
)
"""Pattern for a line in which a program says that its own error message does not matter."""
_MOST_REQUESTED_BYTES: Final = 16 * TIB
"""A single request of another program from which its size is an error."""
_MOST_QUOTED: Final = 120
_RANKS_SHOWN: Final = 3  # the number of ranks that are listed
# A number of bytes that exceeds the memory of any machine.
_MOST_BYTES: Final = 1 << 50
# A number of bytes that is more than a GPU can borrow from host memory under Windows and WSL.
_MOST_BEYOND_THE_CARD_BYTES: Final = 512 * GIB
# The largest relative difference of two figures for the same memory. Each figure is rounded to a hundredth of its unit.
_TOLERANCE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """Why one of several ranks, workers or GPUs ran out of memory, according to its own error message."""

    rank: str
    message: Message
    cause: Cause
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextExplanation(Explanation):
    """The explanation of an error message or a log, and the message that was found."""

    found: FoundMessage | None
    """The explained message, or None if the text has memory figures but no error."""
    account: Account | None
    likely: Cause | None = None
    """A guess: the cause that fits best if the text does not prove it."""
    facts: tuple[Fact, ...] = ()
    """The facts that the text states or suggests. One of them is marked as the one that decided."""
    ranks: tuple[RankVerdict, ...] = ()
    """The cause of the failure for each rank that ran out of memory.

    Empty if only one rank ran out of memory, because the explanation itself then covers that rank.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain data for `json.dumps`."""
        facts = [{**asdict(fact), "kind": fact.kind.value, "certainty": fact.certainty.value} for fact in self.facts]
        likely = self.likely.value if self.likely is not None else None
        return {**Explanation.to_json(self), "likely": likely, "facts": facts}


def explain_text(text: str, *, source: str = "") -> TextExplanation:
    """Explain an error message or a log.

    Raises:
        UsageError: the text contains no out-of-memory error.
    """
    return explain_messages(scan(pieces_of(text)), source=source)


def explain_messages(messages: Iterable[Found], *, source: str = "") -> TextExplanation:
    """Explain the out-of-memory messages of a log. The first message that is certainly about memory is explained.

    A log without such a message is explained by the memory figures that it has.

    Raises:
        UsageError: `messages` has neither an out-of-memory message nor memory figures.
    """
    together = Messages.of(messages)
    found = together.deciding
    if found is None and _is_told_by_figures(together):
        return explain_printed(together.printed, together.growth, together.mention, source=source)
    if found is None:
        raise UsageError(_refusal(source or "the text", together.mention))
    context = tuple(dict.fromkeys((*found.context, *together.programs)))
    found = replace(found, message=together.with_warning(found.message), context=context)
    is_possible = judge_impossible(found.message, found.server) is None
    account = account_of(found.message) if is_possible else None
    verdict = with_printed(_verdict(found, account), found, together.printed, situation_of(found))
    verdict = with_growth(with_growth_in_words(verdict, found), together.growth)
    verdict = _caught(verdict, found) or verdict
    ranks = _ranks(together)
    return TextExplanation(
        source=source,
        cause=verdict.cause,
        headline=headline_of(verdict),
        likely=verdict.likely if verdict.likely is not verdict.cause else None,
        sentence=verdict.sentence,
        evidence=_evidence(found.message, account, together),
        failing_line=found.place,
        remedies=verdict.remedies,
        notes=(*verdict.notes, *_notes_of_ranks(ranks, together), *together.notes(found)),
        found=found,
        account=account,
        ranks=ranks,
        facts=facts_of(
            found, account, situation_of(found), together.printed, together.growth, verdict.likely or verdict.cause
        ),
    )


def explain_printed(
    printed: Sequence[PrintedMemory],
    growth: PrintedGrowth | None = None,
    mention: Mention | None = None,
    *,
    source: str = "",
) -> TextExplanation:
    """Explain memory figures that a program printed without an error message.

    Args:
        printed: the figures in the order of the text; at least one if `growth` is None.
        growth: figures that grow from line to line.
        mention: a line that mentions an out-of-memory error in unknown words.
        source: the name of the file.
    """
    verdict = with_growth(judge_printed(printed, mention) if printed else JUST_FIGURES, growth)
    return TextExplanation(
        source=source,
        cause=verdict.cause,
        headline=headline_of(verdict),
        likely=verdict.likely,
        sentence=verdict.sentence,
        evidence=dict(evidence_of(printed)) if printed else {},
        remedies=verdict.remedies,
        notes=verdict.notes,
        found=None,
        account=None,
        facts=facts_of(None, None, None, printed, growth, verdict.likely or verdict.cause),
    )


def _caught(verdict: TextVerdict, found: FoundMessage) -> TextVerdict | None:
    """Return the verdict on an error that the program caught and calls harmless. Otherwise, None."""
    rows = (found.message.text, *found.after, *found.nearby)
    said = next((row.strip() for row in rows if _HARMLESS.search(row) is not None), None)
    if said is None:
        return None
    return TextVerdict(
        cause=Cause.DID_NOT_FAIL,
        sentence=f"The program caught this error and calls it harmless: {quoted(said[:_MOST_QUOTED])}.",
        notes=(f"if the program stops later, the error at that place counts; about this one: {verdict.sentence}",),
    )


def _is_told_by_figures(together: Messages) -> bool:
    """Return whether figures explain a text without a known error message."""
    if together.growth is not None:
        return True
    if together.mention is None:
        return bool(together.printed)
    return not together.mention.advice and any(is_of_pytorch(printed) for printed in together.printed)


def _refusal(source: str, mention: Mention | None) -> str:
    if mention is not None and mention.advice:
        return f"{source} contains no out-of-memory error: line {mention.row} has another error. {mention.advice}"
    if mention is not None:
        return (
            f"{source} mentions memory running out at line {mention.row}, in an error message that ullage does not "
            f"know: {quoted(mention.text)}; give the whole error of PyTorch or the program, or a snapshot. In most "
            "programs a smaller batch, input, context or model helps, or ending other programs on the GPU"
        )
    return (
        f"{source} contains no out-of-memory error that ullage knows, neither of PyTorch, CUDA or the system nor of "
        "another program; give the whole error, or a snapshot"
    )


def _ranks(together: Messages) -> tuple[RankVerdict, ...]:
    each = together.each
    if len(each) < 2:
        return ()
    verdicts = []
    for rank, found in each.items():
        found = replace(found, message=together.with_warning(found.message))
        verdict = _verdict(found, account_of(found.message))
        verdicts.append(RankVerdict(rank=rank, message=found.message, cause=verdict.cause, sentence=verdict.sentence))
    return tuple(verdicts)


def _notes_of_ranks(ranks: tuple[RankVerdict, ...], together: Messages) -> Iterator[str]:
    if not ranks:
        return
    least = "at least " if together.rest.failures else ""
    names = [verdict.rank for verdict in ranks]
    others = {verdict.cause: verdict for verdict in reversed(ranks) if verdict.cause is not ranks[0].cause}
    alike = "" if others else ", all for the same reason"
    yield (
        f"{least}{len(ranks)} ranks or workers ran out of memory ({_some(names)}){alike}; this report explains the "
        "first"
    )
    for cause, one in reversed(others.items()):
        differing = [verdict.rank for verdict in ranks if verdict.cause is cause]
        verb = "differs" if len(differing) == 1 else "differ"
        yield f"{_some(differing)} {verb}: {cause.phrase}. {one.sentence}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_RANKS_SHOWN]) + (" ..." if len(names) > _RANKS_SHOWN else "")


def _verdict(found: FoundMessage, account: Account | None) -> TextVerdict:
    message = found.message
    if (impossible := judge_impossible(message, found.server)) is not None:
        return impossible
    if message.wording == "tensorrt_tactic" and "engine not built" in found.context:
        message = replace(message, wording="tensorrt_no_way")
    if message.kind is MessageKind.PROGRAM and (message.requested_bytes or 0) >= _MOST_REQUESTED_BYTES:
        verdict = judge_other(replace(found, message=replace(message, kind=MessageKind.BOGUS_SIZE)))
        asked_by = (f"the request came from {message.backend}",) if message.backend else ()
        return replace(verdict, notes=(*asked_by, *verdict.notes))
    if (of_program := judge_program(message, found.server)) is not None:
        return of_stable_diffusion(of_program) if "stable-diffusion.cpp" in found.context else of_program
    return within_a_program(_of_pytorch(message, account, found), found)


def _of_pytorch(message: Message, account: Account | None, found: FoundMessage) -> TextVerdict:
    match message.kind:
        case MessageKind.ALLOCATOR:
            if "expandable segments" in found.context:
                message = replace(message, is_expandable=True)
            return judge_allocator(
                message,
                account,
                situation_of(found),
                libraries_bytes=libraries_bytes(found),
                is_shared="unified memory" in found.context,
            )
        case MessageKind.LIMIT:
            return judge_preempted(message)
        case _:
            return judge_other(found)


def _evidence(message: Message, account: Account | None, together: Messages) -> dict[str, int]:
    figures = {
        "requested_bytes": message.requested_bytes,
        "total_bytes": message.total_bytes,
        "free_bytes": message.free_bytes,
        "process_bytes": message.process_bytes,
        "allowed_bytes": message.allowed_bytes,
        "allocated_bytes": message.allocated_bytes,
        "private_pools_bytes": message.private_pools_bytes,
        "cached_bytes": message.unallocated_bytes,
        "reserved_bytes": message.reserved_bytes,
        "other_allocations_bytes": message.other_allocations_bytes,
        "reserve_bytes": message.reserve_bytes,
        "host_used_bytes": message.host_used_bytes,
        "host_total_bytes": message.host_total_bytes,
    }
    if account is not None:
        figures |= {
            "context_bytes": account.outside_bytes,
            "other_processes_bytes": account.others_bytes,
            "unnamed_bytes": account.unnamed_bytes,
        }
    if message.requested_bytes is not None and message.free_bytes is not None:
        usable = message.free_bytes + (message.unallocated_bytes or 0)
        figures["missing_bytes"] = max(0, message.requested_bytes - usable)
    found = {name: value for name, value in figures.items() if value is not None}
    rest = together.rest
    return {**found, "messages": together.failures + rest.failures, "warnings": together.warnings + rest.warnings}


def judge_impossible(message: Message, server: ServerMemory | None) -> TextVerdict | None:
    """Return the explanation of a message with impossible memory figures, or None if they are possible."""
    why = _why(message, server)
    if why is None:
        return None
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"The figures in the message are impossible, so nothing can be concluded from it: {why}.",
        notes=(
            "give the message exactly as the program wrote it; torch.cuda.mem_get_info() returns the GPU's memory size",
        ),
    )


def _why(message: Message, server: ServerMemory | None) -> str | None:
    figures = [
        *((field.name, getattr(message, field.name)) for field in fields(message) if field.name != "requested_bytes"),
        *((field.name, getattr(server, field.name, None)) for field in fields(ServerMemory)),
    ]
    if any(name == "total_bytes" and size == 0 for name, size in figures):
        return "the GPU has 0 bytes"
    for name, size in figures:
        if name.endswith("_bytes") and isinstance(size, int) and size > _MOST_BYTES:
            return f"{text_of_bytes(size)} are more than any machine has"
    if message.kind is not MessageKind.ALLOCATOR:
        return None
    allocated, reserved, total = message.allocated_bytes, message.reserved_bytes, message.total_bytes
    if allocated is not None and reserved is not None and allocated > reserved + _TOLERANCE * (allocated + GIB):
        return f"{text_of_bytes(allocated)} are allocated of {text_of_bytes(reserved)} reserved"
    held = max(reserved or 0, (allocated or 0) + (message.unallocated_bytes or 0))
    if total is not None and held > 4 * total + _MOST_BEYOND_THE_CARD_BYTES:
        return f"PyTorch holds {text_of_bytes(held)} on a GPU with {text_of_bytes(total)}"
    return None
