"""Mixed precision, written by hand: autocast around the forward pass, or the argument of a library whose loop it is."""

from ullage.changes.facts import TrainingFacts
from ullage.changes.forward_span import around_forward
from ullage.changes.precision_argument import keyword_of
from ullage.editing.edit import AddImport, AddKeyword, NotCertain, Recipe


def recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    """Return how mixed precision is written in a script."""
    call = facts.loop.library_call
    if facts.loop.library:
        keyword, value = keyword_of(facts.loop.library, setting)
        if call is None:
            return Recipe(snippet=f"{keyword}={value}")
        edit = AddKeyword(
            file=call.place.file, line=call.place.line, function=call.function, keyword=keyword, value=value
        )
        return Recipe(snippet=f"{call.function}(..., {keyword}={value})", edits=(edit,))
    header = f'with torch.autocast("cuda", dtype=torch.{setting}):'
    snippet = f"{header}\n    loss = ...  # the forward pass and the loss, not the backward pass"
    if setting == "float16":
        return Recipe(
            snippet=f"scaler = torch.amp.GradScaler()\n{snippet}\nscaler.scale(loss).backward()\n"
            "scaler.unscale_(optimizer)  # before gradients are clipped\nscaler.step(optimizer)\nscaler.update()"
        )
    try:
        wrap = around_forward(facts, header)
    except NotCertain:
        return Recipe(snippet=snippet)
    return Recipe(snippet=snippet, edits=(wrap, AddImport(file=wrap.file, text="import torch")))
