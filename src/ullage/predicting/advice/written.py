"""Write changes as edits of the user's files, and run the edited files to verify their memory use."""

import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ullage.base.errors import ScriptError
from ullage.base.secrets import SourceCode
from ullage.predicting.advice.trial import ChangeSetting, ChangeTrial
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.diff import diff_of, root_of_patch
from ullage.predicting.editing.edit import NotCertain, Recipe, SourceEdit
from ullage.predicting.prediction.changed_request import changed
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import predict_with_draws


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """One change as source code for the user's script."""

    name: str
    snippet: str
    is_in_diff: bool
    """Whether the diff contains the change. If not, the user has to write it by hand."""
    why_not: str = ""
    """The reason why the diff does not contain the change: one sentence without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAdvice:
    """Changes as source code, and the result of a run with this code."""

    parts: tuple[WrittenPart, ...]
    diff: SourceCode
    """The unified diff of the user's files. Empty if the changes edit no file."""
    command: str
    """Shell lines that set environment variables or add script arguments. Empty if none are needed."""
    proof: Prediction | None
    """The run of the edited script, or None if it was not run."""
    is_proved: bool
    """Whether the edited script uses exactly as much memory as a run in which ullage applies the changes itself."""
    root: Path = Path()
    """The folder from which git reads the paths of the diff."""
    problem: str = ""
    """The reason why ullage did not check the memory use of the edited script. It is empty after a check."""

    def to_json(self) -> dict[str, Any]:
        """Return the diff, the shell lines and the run of the edited script as plain data for `json.dumps`."""
        return {
            "diff": self.diff,
            "command": self.command,
            "parts": [asdict(part) for part in self.parts],
            "is_proved": self.is_proved,
            "problem": self.problem,
            "proof_peak_allocated_bytes": self.proof.peak_allocated_bytes if self.proof is not None else None,
            "proof_peak_reserved_bytes": self.proof.peak_reserved_bytes if self.proof is not None else None,
        }


def written(
    roomy: Request, request: Request, facts: TrainingFacts, best: ChangeTrial, *, is_to_run: bool = True
) -> WrittenAdvice:
    """Write a combination of changes as source code, and run this code on the emulated GPU.

    Args:
        roomy: the request on the emulated GPU with ample memory.
        request: the user's request.
        facts: how the script trains.
        best: the combination and its run.
        is_to_run: whether to run the edited script.
    """
    recipes = [(part, part.change.recipe_for(facts, part.setting)) for part in best.combination.parts]
    texts, parts = _texts(recipes)
    assert best.prediction is not None
    is_roomy = best.prediction.total_memory_bytes == roomy.total_memory_bytes
    by_hand = replace(roomy if is_roomy else request, edited={path: after for path, (_, after) in texts.items()})
    command = []
    for part, recipe in recipes:
        if recipe.environment and part.change.alloc_conf is not None:
            by_hand = changed(by_hand, part.change, part.setting)
            command.append(f"export PYTORCH_CUDA_ALLOC_CONF={by_hand.options['alloc_conf']}")
        elif recipe.arguments:
            by_hand = replace(by_hand, arguments=(*by_hand.arguments, *recipe.arguments))
            command.append(f"{request.name} ... {' '.join(recipe.arguments)}")
    root = root_of_patch(texts) if texts else Path()
    whole = WrittenAdvice(
        parts=tuple(parts),
        diff=SourceCode(diff_of(texts, root)),
        root=root,
        command="\n".join(command),
        proof=None,
        is_proved=False,
    )
    missing = [part.name for part in parts if not part.is_in_diff]
    if missing:
        return replace(whole, problem=f"no certain place in the source code was found for {', '.join(missing)}")
    if not is_to_run:
        return replace(whole, problem="the edited script was not run, because the search was interrupted")
    return _proved(whole, by_hand, best)


def _proved(whole: WrittenAdvice, by_hand: Request, best: ChangeTrial) -> WrittenAdvice:
    assert best.prediction is not None
    try:
        proof = predict_with_draws(by_hand)
    except ScriptError as error:
        return replace(whole, problem=f"the edited script fails: {str(error).splitlines()[0]}")
    promised = best.prediction
    same = (proof.peak_allocated_bytes, proof.peak_reserved_bytes) == (
        promised.peak_allocated_bytes,
        promised.peak_reserved_bytes,
    )
    return replace(whole, proof=proof, is_proved=same)


def _texts(
    recipes: list[tuple[ChangeSetting, Recipe]],
) -> tuple[dict[str, tuple[str, str]], list[WrittenPart]]:
    sources: dict[str, str] = {}
    kept: dict[str, list[SourceEdit]] = defaultdict(list)
    parts = []
    for part, recipe in recipes:
        why = ""
        if recipe.edits:
            why = _placed(recipe, sources, kept)
        elif not recipe.environment and not recipe.arguments:
            why = recipe.why_not or "no certain place in the source code was found for it"
        parts.append(WrittenPart(name=part.title, snippet=recipe.snippet, is_in_diff=not why, why_not=why))
    return {file: (sources[file], edited(sources[file], edits, file=file)) for file, edits in kept.items()}, parts


# Returns the reason if the edits conflict with earlier edits, otherwise an empty text.
def _placed(recipe: Recipe, sources: dict[str, str], kept: dict[str, list[SourceEdit]]) -> str:
    try:
        for file in {edit.file for edit in recipe.edits}:
            sources.setdefault(file, source_of(file))
            edits = [*kept[file], *(edit for edit in recipe.edits if edit.file == file)]
            edited(sources[file], edits, file=os.path.relpath(file))
    except NotCertain as error:
        return str(error)
    for edit in recipe.edits:
        kept[edit.file].append(edit)
    return ""
