"""Runs all checks of `ullage doctor`."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from ullage.base.errors import ExitCode
from ullage.base.public import public
from ullage.base.secrets import told_environment
from ullage.report.answer import Answer
from ullage.running.diagnosis.allocation import findings_of_allocation, text_in_force
from ullage.running.diagnosis.card import findings_of_cards
from ullage.running.diagnosis.facts import DiagnosisFinding, MachineFacts, Weight
from ullage.running.diagnosis.gather import gather_facts
from ullage.running.diagnosis.surroundings import findings_of_surroundings
from ullage.running.diagnosis.variable import findings_of_variables

SCHEMA: Final = 1


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Answer):
    """The result of `ullage doctor`: facts about a machine, and the problems that were found."""

    described_in: ClassVar[str] = "ullage.running.diagnosis.describe"

    facts: MachineFacts
    findings: tuple[DiagnosisFinding, ...]

    @property
    def problems(self) -> tuple[DiagnosisFinding, ...]:
        """The findings that are problems, without the notes."""
        return tuple(finding for finding in self.findings if finding.weight is Weight.PROBLEM)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage doctor`."""
        return ExitCode.NO if self.problems else ExitCode.YES

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary that `json.dumps` accepts."""
        return {
            "schema": SCHEMA,
            "findings": [asdict(finding) | {"weight": finding.weight.value} for finding in self.findings],
            "settings": text_in_force(self.facts),
            **asdict(self.facts),
            "environment": told_environment(self.facts.environment),
        }


@public
def diagnose(gpu: str | None = None) -> Diagnosis:
    """Examine this machine, and this process if it has imported torch.

    Args:
        gpu: the name of a GPU to emulate and examine instead of this machine's GPUs.

    Raises:
        TorchMissingError: `gpu` is given, and no PyTorch that is built for CUDA is installed.
        UnknownGpuError: no GPU has this name.
        UsageError: `gpu` is given, and this process has already imported torch.
    """
    facts = gather_facts(gpu)
    return Diagnosis(facts=facts, findings=findings_of(facts))


def findings_of(facts: MachineFacts) -> tuple[DiagnosisFinding, ...]:
    """Return the problems and notes that follow from the facts about a machine. Problems come first."""
    found = [
        *findings_of_allocation(facts),
        *findings_of_variables(facts),
        *findings_of_cards(facts),
        *findings_of_surroundings(facts),
    ]
    return tuple(sorted(found, key=lambda finding: finding.weight is not Weight.PROBLEM))
