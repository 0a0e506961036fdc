"""Forward and backward in parts of the batch, whose gradients add up to the batch's own."""

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
_MOST_PARTS: Final = 64
"""The most parts of a batch: each is a forward and a backward pass, and who needs more has other problems."""


def edits_for(facts: TrainingFacts, parts: int) -> tuple[SourceEdit, ...]:
    """Return the edits that take the batch in parts.

    Raises:
        NotCertain: they cannot be placed.
    """
    loop = facts.loop
    if takes_argument(facts):
        raise NotCertain(f"the loop is {loop.library}'s own")
    if loop.backward is None:
        raise NotCertain("no line of the user's asks for the backward pass")
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
    edited(source, edits)  # raises where one has no certain place
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
        return Applicable(why_not="it is not known how many items a batch has")
    if items < 2:
        return Applicable(why_not="the batch has one item")
    most = min(items, _MOST_PARTS)
    settings = [str(1 << power) for power in range(1, most.bit_length()) if items % (1 << power) == 0]
    if not settings:
        return Applicable(why_not=f"the batch has {items} items, which do not divide into equal parts")
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


def _gradients_for(facts: TrainingFacts) -> Gradients:
    """Return how the gradients compare, by how the loss is made of the batch.

    BatchNorm takes its statistics of a part instead of the batch.
    """
    form, loop = facts.loop.loss, facts.loop
    if facts.model is not None and facts.model.batch_norms > 0:
        return Gradients.CHANGED
    if loop.library == "transformers" and loop.share != "parts":
        if form is LossForm.SUM and loop.share == "counts":
            return Gradients.ROUNDING
        return Gradients.CHANGED if form in (LossForm.MEAN, LossForm.COUNTED) else Gradients.UNKNOWN
    if form is LossForm.MEAN:
        return Gradients.ROUNDING
    if form is LossForm.SUM:  # which a library divides by the number of parts
        return Gradients.CHANGED if takes_argument(facts) else Gradients.ROUNDING
    among_themselves = any(each.rows == each.classes == facts.items for each in facts.losses)
    if form is not LossForm.COUNTED or among_themselves:  # items are compared with each other: parts compare fewer
        return Gradients.UNKNOWN
    # The edits weigh parts by their counts of targets.
    if not takes_argument(facts) and counted_loss(facts) is not None and _is_edit(facts, "2"):
        return Gradients.ROUNDING
    return Gradients.CHANGED if _ignores(facts) else Gradients.COUNTS


def _ignores(facts: TrainingFacts) -> bool:
    """Tell whether targets are ignored, as far as can be seen."""
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
    """Return the one call of the script's whose mean over targets is the loss; None where it is not known."""
    loop = facts.loop
    if loop.loss is not LossForm.COUNTED or len(facts.losses) != 1 or loop.backward is None:
        return None
    [loss] = facts.losses
    if not loss.is_users or (loss.place.file, loss.place.function) != (loop.backward.file, loop.backward.function):
        return None
    return CountedLoss(line=loss.place.line, ignore_index=loss.ignore_index)


CHANGE: Final = Change(
    key="accumulate",
    name="accumulation in parts",
    title_for=lambda setting: f"accumulation in {setting} parts",
    cost=ChangeCost.TIME,
    gradients=Gradients.ROUNDING,
    gradients_for=_gradients_for,
    explanation=(
        "forward and backward take a part of the batch at a time, and the gradients add up to those of the batch, by "
        "the parts' shares in the mean that the loss is"
    ),
    settings_for=_applicable,
    install=_install,
    is_edit=_is_edit,
    recipe_for=_recipe_for,
)
