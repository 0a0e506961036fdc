"""Writes the report of `ullage doctor`: the configuration, the problems, and their solutions."""

from collections.abc import Iterator

from ullage.base.units import text_of_bytes
from ullage.report.report import Remarks, Report, Section, Table, TableRow, Tone
from ullage.running.diagnosis.allocation import text_in_force
from ullage.running.diagnosis.diagnosis import Diagnosis
from ullage.running.diagnosis.facts import CardFacts, DiagnosisFinding, MachineFacts, Torch, Weight


def describe(diagnosis: Diagnosis) -> Report:
    """Return the report of `ullage doctor`."""
    problems, notes = len(diagnosis.problems), len(diagnosis.findings) - len(diagnosis.problems)
    headline = "NO PROBLEMS FOUND" if not problems else f"{problems} {'PROBLEM' if problems == 1 else 'PROBLEMS'}"
    sentence = "No setting was found that prevents PyTorch from using this machine's GPU memory."
    if problems:
        sentence = "Each problem is listed with what was found, why it matters, and what to do."
    if notes:
        sentence += f" There {'is 1 note' if notes == 1 else f'are {notes} notes'} as well."
    return Report(
        headline=headline,
        tone=Tone.BAD if problems else Tone.GOOD,
        subject=_subject(diagnosis.facts),
        sentence=sentence,
        sections=tuple(_sections(diagnosis)),
    )


def _subject(facts: MachineFacts) -> str:
    torch = f"torch {facts.torch.version}" if facts.torch is not None else "no torch"
    names = sorted({card.name for card in facts.cards})
    cards = f"{len(facts.cards)} x {', '.join(names)}" if names else "no GPU"
    return f"{torch}, {cards}" + (" (emulated)" if facts.is_emulated else "")


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    yield Table(
        title="Configuration",
        columns=("", ""),
        rows=tuple(TableRow(cells=cells) for cells in _configured(diagnosis.facts)),
    )
    for finding in diagnosis.findings:
        yield _finding(finding)


def _finding(finding: DiagnosisFinding) -> Remarks:
    mark = "!" if finding.weight is Weight.PROBLEM else "note:"
    return Remarks(title=f"{mark} {finding.title}", items=(finding.seen, finding.why, f"-> {finding.cure}"))


def _configured(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    yield "PyTorch", _text_of_torch(facts.torch)
    yield "allocator settings", text_in_force(facts) or "(nothing set)"
    if facts.driver is not None:
        major, minor = facts.driver.cuda
        yield "driver", f"{facts.driver.version}, supports CUDA up to {major}.{minor}"
    if facts.workspaces is not None:
        yield "cuDNN workspaces", facts.workspaces
    for card in facts.cards:
        yield f"GPU {card.index}", _text_of_card(card)
    if not facts.cards:
        yield "GPU", "none found by NVIDIA's driver"
    yield from _host(facts)


def _text_of_torch(torch: Torch | None) -> str:
    if torch is None:
        return "not installed"
    if torch.error is not None:
        return f"{torch.version}, cannot be imported"
    if torch.hip is not None:
        return f"{torch.version}, for ROCm {torch.hip}"
    if torch.cuda is None:
        return torch.version if torch.settings_error is not None else f"{torch.version}, without CUDA"
    return f"{torch.version}, for CUDA {torch.cuda}: {' '.join(torch.architectures)}"


def _text_of_card(card: CardFacts) -> str:
    kind = "" if card.compute_capability is None else ", sm_{}{}".format(*card.compute_capability)
    return f"{card.name}{kind}, {text_of_bytes(card.used_bytes)} of {text_of_bytes(card.total_bytes)} used"


def _host(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    host = facts.host
    if host.memory_bytes is not None:
        limit = (
            "" if host.limit_bytes is None else f", of which the container may use {text_of_bytes(host.limit_bytes)}"
        )
        yield "machine", f"{host.system}{' (WSL)' if host.is_wsl else ''}, {text_of_bytes(host.memory_bytes)}{limit}"
    if host.shared_total_bytes is not None and host.shared_free_bytes is not None:
        yield "/dev/shm", f"{text_of_bytes(host.shared_free_bytes)} of {text_of_bytes(host.shared_total_bytes)} free"
    if facts.torch is not None and facts.torch.pinned_bytes is not None:
        yield "pinned memory", text_of_bytes(facts.torch.pinned_bytes)
