"""Gradient accumulation: run the forward and backward passes on one part of a batch after the other."""

import re
from typing import Final

from ullage.predicting.changes.accumulation.library_recipe import library_recipe, takes_argument
from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import IGNORED, LossForm, TrainingFacts
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.batch_parts import CountedLoss, PassPlaces, in_parts
from ullage.predicting.editing.edit import NotCertain, Recipe, SourceEdit

_NAME: Final = re.compile(r"[^\W\d]\w*")
_SNIPPET: Final = """\
for part in batch.chunk({parts}):
    loss = compute_loss(model, part) * (len(part) / len(batch))
    loss.backward()
optimizer.step()"""
# Each part of a batch needs its own forward and backward pass.
_MOST_PARTS: Final = 64


def edits_for(facts: TrainingFacts, parts: int) -> tuple[SourceEdit, ...]:
    """Return the source edits that split the batch into parts.

    Raises:
        NotCertain: ullage is not certain where an edit belongs in the source code.
    """
    loop = facts.loop
    if takes_argument(facts):
        raise NotCertain(f"the training loop belongs to {loop.library}")
    if loop.backward is None:
        raise NotCertain("no line of the user's code calls backward")
    is_same = loop.forward is not None and (loop.forward.file, loop.forward.function) == (
        loop.backward.file,
        loop.backward.function,
    )
    passes = PassPlaces(
        file=loop.backward.file,
        function=loop.backward.function,
        forward_line=loop.forward.line if loop.forward is not None and is_same else None,
        backward_line=loop.backward.line,
        batch={
            each.name: bool(each.shape) and each.shape[0] == facts.items
            for each in facts.batch
            if _NAME.fullmatch(each.name)
        },
        is_sum=loop.loss is LossForm.SUM,
        counted=counted_loss(facts),
    )
    source = source_of(passes.file)
    edits = in_parts(source, passes, parts)
    edited(source, edits)  # raises NotCertain if an edit does not have a certain place
    return edits


def _install(applied: AppliedChange) -> None:
    from ullage.predicting.changes.accumulation.parts_of_loader import PartsOfLoader

    PartsOfLoader(applied)


def _is_edit(facts: TrainingFacts, setting: str) -> bool:
    try:
        return bool(edits_for(facts, int(setting)))
    except NotCertain:
        return False


def _applicable(facts: TrainingFacts) -> Applicable:
    items = facts.items
    if items is None:
        return Applicable(why_not="the number of items in a batch is unknown")
    if items < 2:
        return Applicable(why_not="the batch has only one item")
    most = min(items, _MOST_PARTS)
    settings = [str(1 << power) for power in range(1, most.bit_length()) if items % (1 << power) == 0]
    if not settings:
        return Applicable(why_not=f"the batch has {items} items, which cannot be divided into equal parts")
    if takes_argument(facts) or (facts.loop.uses_loader and facts.loop.passes_per_step == 1):
        return Applicable(settings=settings)
    try:
        edits_for(facts, 2)
    except NotCertain as error:
        return Applicable(why_not=str(error))
    return Applicable(settings=settings)


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    parts = int(setting)
    if takes_argument(facts):
        return library_recipe(facts, parts)
    return Recipe.placed(_SNIPPET.format(parts=parts), lambda: edits_for(facts, parts))


# BatchNorm computes its statistics over a part in place of the full batch, which changes the gradients.
def _gradients_for(facts: TrainingFacts) -> Gradients:
    form, loop = facts.loop.loss, facts.loop
    if facts.model is not None and facts.model.batch_norms > 0:
        return Gradients.CHANGED
    if loop.library == "transformers" and loop.share != "parts":
        if form is LossForm.SUM and loop.share == "counts":
            return Gradients.ROUNDING
        return Gradients.CHANGED if form in (LossForm.MEAN, LossForm.COUNTED) else Gradients.UNKNOWN
    if form is LossForm.MEAN:
        return Gradients.ROUNDING
    if form is LossForm.SUM:  # a library divides a summed loss by the number of parts
        return Gradients.CHANGED if takes_argument(facts) else Gradients.ROUNDING
    among_themselves = any(each.rows == each.classes == facts.items for each in facts.losses)
    if (
        form is not LossForm.COUNTED or among_themselves
    ):  # the loss compares items with each other, and a part has fewer pairs
        return Gradients.UNKNOWN
    # The edits weight each part by its number of targets.
    if not takes_argument(facts) and counted_loss(facts) is not None and _is_edit(facts, "2"):
        return Gradients.ROUNDING
    return Gradients.CHANGED if _ignores(facts) else Gradients.COUNTS


def _ignores(facts: TrainingFacts) -> bool:
    if facts.loop.ignores_targets or any(each.ignore_index != IGNORED for each in facts.losses):
        return True
    for file in {each.place.file for each in facts.losses}:
        try:
            text = source_of(file)
        except NotCertain:
            return True
        if str(IGNORED) in text or "ignore_index" in text:
            return True
    return False


def counted_loss(facts: TrainingFacts) -> CountedLoss | None:
    """Return the call of cross_entropy that computes the script's loss, or None if it is not the only call."""
    loop = facts.loop
    if loop.loss is not LossForm.COUNTED or len(facts.losses) != 1 or loop.backward is None:
        return None
    [loss] = facts.losses
    if not loss.is_users or (loss.place.file, loss.place.function) != (loop.backward.file, loop.backward.function):
        return None
    return CountedLoss(line=loss.place.line, ignore_index=loss.ignore_index)


CHANGE: Final = Change(
    key="accumulate",
    name="gradient accumulation in parts",
    title_for=lambda setting: f"gradient accumulation in {setting} parts",
    cost=ChangeCost.TIME,
    gradients=Gradients.ROUNDING,
    gradients_for=_gradients_for,
    explanation=(
        "forward and backward process one part of the batch at a time; each part's loss is weighted by its share, so "
        "that the gradients add up to those of the full batch"
    ),
    settings_for=_applicable,
    install=_install,
    is_edit=_is_edit,
    recipe_for=_recipe_for,
)
