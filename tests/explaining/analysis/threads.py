"""Public threads of 2024 to 2026 in which memory ran out, and how often `ullage explain` names their cause.

    python -m tests.explaining.analysis.threads            the shares of both halves
    python -m tests.explaining.analysis.threads --wrong    also the texts of the first half that are wrong

Each line of `data/threads_rules.jsonl` and `data/threads_measure.jsonl` is one text: the error as people posted it
(personal details replaced), the page, the date, how the thread ended, and what was expected. The expectations were
written down before ullage read the text, by readers who did not know its rules. `cause` is what an expert concludes
from the text; `accept` lists causes that are right too; `advice_any` are patterns of useful advice.

The texts of one repository are all in the same half. Rules may be written from the first half (481 texts). The second
half (141 texts) only measures: it was collected after most rules had been written, from repositories that the first
half does not have, and nobody who writes rules reads it. Reviewers judged the answers to it. Their reasons, without the
texts, led to general rules, so the shares of texts that no reviewer has seen yet are lower: on 49 texts that were
collected last, 92 % of the causes were right and 90 % of the first advice useful at first sight. These 49 texts are in
the first half now, as are the 204 texts of an earlier measuring half (84 % right at first sight). Error messages and
log lines are as programs printed them; all sentences of the files are ours.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text

HALVES: Final = ("rules", "measure")
_DATA: Final = Path(__file__).parent / "data"
CAUSES: Final = {
    "not_enough_gpu_memory": {Cause.TRULY_FULL},
    "fragmentation": {Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS},
    "memory_leak": {Cause.LEAK, Cause.ACCUMULATION},
    "other_process": {Cause.OTHER_PROCESS},
    "configured_limit": {Cause.LIMIT, Cause.ADDRESS_SPACE},
    "host_memory": {Cause.HOST_MEMORY},
    "job_limit": {Cause.JOB_LIMIT},
    "windows_commit": {Cause.COMMIT_LIMIT},
    "shared_memory_dev_shm": {Cause.SHARED_MEMORY},
    "pinned_memory": {Cause.PINNED_MEMORY},
    "unified_memory": {Cause.UNIFIED_MEMORY},
    "outside_allocator": {Cause.DISGUISED},
    "impossible_size": {Cause.BOGUS_SIZE},
    "kernel_shared_memory": {Cause.ON_CHIP},
    "not_memory": {Cause.DID_NOT_FAIL, None},
    "text_cannot_tell": {Cause.CANNOT_TELL, None},
}
"""The causes of ullage that mean the same as a cause in the files. None: ullage finds no out-of-memory error."""
_UNSURE: Final = (Cause.CANNOT_TELL, None)


@dataclass(frozen=True, slots=True)
class Judged:
    """One text, and what ullage says about it."""

    text: dict[str, Any]
    explanation: TextExplanation | None
    refusal: str = ""

    @property
    def cause(self) -> Cause | None:
        """The cause that the headline names, which may be a guess."""
        return (self.explanation.likely or self.explanation.cause) if self.explanation is not None else None

    @property
    def is_right(self) -> bool:
        return any(self.cause in CAUSES[name] for name in (self.text["cause"], *self.text["accept"]))

    @property
    def is_confidently_wrong(self) -> bool:
        is_guess = self.explanation is not None and self.explanation.headline.startswith("PROBABLY")
        return not self.is_right and not is_guess and self.cause not in _UNSURE

    @property
    def advice(self) -> str:
        """The first two pieces of advice, and the first sentence."""
        if self.explanation is None:
            return self.refusal
        remedies = [f"{remedy.name} {remedy.remark}" for remedy in self.explanation.remedies[:2]]
        notes = list(self.explanation.notes[: 2 - len(remedies)])
        return " ".join([self.explanation.sentence, *remedies, *notes]).lower()

    @property
    def is_useful(self) -> bool:
        return any(re.search(pattern, self.advice) for pattern in self.text["advice_any"])


@cache
def texts(half: str) -> tuple[dict[str, Any], ...]:
    """Return the texts of one half of the corpus."""
    lines = (_DATA / f"threads_{half}.jsonl").read_text("utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def judged(text: dict[str, Any]) -> Judged:
    """Return what ullage says about a text."""
    try:
        return Judged(text, explain_text(text["text"]))
    except UsageError as error:
        return Judged(text, None, str(error).lower())


def shares(half: str) -> dict[str, float]:
    """Return the shares of one half: cause right, first advice useful, confidently wrong, not recognized."""
    each = [judged(text) for text in texts(half)]
    number = len(each) or 1
    return {
        "texts": len(each),
        "cause right": sum(one.is_right for one in each) / number,
        "first advice useful": sum(one.is_useful for one in each) / number,
        "confidently wrong": sum(one.is_confidently_wrong for one in each) / number,
        "not recognized": sum(one.explanation is None and not one.is_right for one in each) / number,
    }


def main() -> None:
    """Print the shares of both halves, and on request the wrong texts of the first half."""
    for half in HALVES:
        found = shares(half)
        rest = ", ".join(f"{name} {share:.1%}" for name, share in found.items() if name != "texts")
        print(f"{half:8} {found['texts']:.0f} texts: {rest}")
        wrong = [one for one in map(judged, texts(half)) if not one.is_right]
        pairs = Counter((one.text["cause"], str(one.cause)) for one in wrong)
        print("         expected -> said:", ", ".join(f"{a} -> {b}: {n}" for (a, b), n in pairs.most_common()))
    if "--wrong" in sys.argv:
        for one in map(judged, texts("rules")):
            if not one.is_right or not one.is_useful:
                _print(one)


def _print(one: Judged) -> None:
    mark = "" if one.is_right else "CAUSE "
    mark += "" if one.is_useful else "ADVICE"
    print(f"\n=== {one.text['id']}: {mark}; expected {one.text['cause']} {one.text['accept']}, said {one.cause}")
    print(f"    wanted: {one.text['advice']} {one.text['advice_any']}")
    print(f"    ended: {one.text['ended']}")
    print("    said:", one.advice[:700])
    print("\n".join("    | " + line[:200] for line in one.text["text"].splitlines()[-14:]))


if __name__ == "__main__":
    main()
