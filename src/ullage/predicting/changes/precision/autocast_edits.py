"""Mixed precision, written by hand: autocast around the forward pass, or the argument of a library whose loop it is."""

import ast
from dataclasses import replace

from ullage.predicting.changes.precision.precision_argument import keyword_of
from ullage.predicting.changes.source.forward_span import around_forward
from ullage.predicting.changes.source.user_source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import (
    AddKeyword,
    InsertAfter,
    InsertBefore,
    NotCertain,
    Recipe,
    ReplaceExpression,
    SourceEdit,
)
from ullage.predicting.editing.scope import LOOPS, Scope, free_name, levels_to, parse, scope_of


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
        snippet = (
            f"scaler = torch.amp.GradScaler()\n{snippet}\nscaler.scale(loss).backward()\n"
            "scaler.unscale_(optimizer)  # before gradients are clipped\nscaler.step(optimizer)\nscaler.update()"
        )
    is_scaled = setting == "float16"
    return Recipe.placed(snippet, lambda: [*around_forward(facts, header), *(_scaled(facts) if is_scaled else ())])


def _scaled(facts: TrainingFacts) -> list[SourceEdit]:
    """Return the edits that put a scaler around the backward pass and the optimizer's step.

    Raises:
        NotCertain: they do not stand in one loop of one function, as calls of `backward` and `step`.
    """
    forward, backward = facts.loop.forward_in_loop, facts.loop.backward
    step, clip = facts.loop.step, facts.loop.clip
    if forward is None or backward is None or step is None or facts.loop.passes_per_step > 1:
        raise NotCertain("forward, backward and step are not in one loop")
    if any((each.file, each.function) != (backward.file, backward.function) for each in (step, clip) if each):
        raise NotCertain("forward, backward and step are not in one function")
    source = source_of(backward.file)
    scope = scope_of(parse(source), backward.function)
    scaler = free_name(scope, "scaler")
    loops = [level.statement for level in levels_to(scope, forward.line) if isinstance(level.statement, LOOPS)]
    if not loops:
        raise NotCertain("no loop holds the forward pass")
    file = backward.file
    loss = _receiver(file, source, scope, backward.line, "backward")
    optimizer = _receiver(file, source, scope, step.line, "step")
    edits: list[SourceEdit] = [
        InsertBefore(file=file, line=loops[0].lineno, text=f"{scaler} = torch.amp.GradScaler()"),
        replace(loss, new=f"{scaler}.scale({loss.old})"),
        replace(optimizer, old=f"{optimizer.old}.step(", new=f"{scaler}.step({optimizer.old}"),
        InsertAfter(file=file, line=step.line, text=f"{scaler}.update()"),
    ]
    if clip is not None:
        edits.append(InsertBefore(file=file, line=clip.line, text=f"{scaler}.unscale_({optimizer.old})"))
    return edits


def _receiver(file: str, source: str, scope: Scope, line: int, method: str) -> ReplaceExpression:
    """Return what a method without arguments is called of at a line, as an edit that leaves it as it is."""
    statement = levels_to(scope, line)[-1].statement
    value = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != method:
        raise NotCertain(f"line {line} is no plain call of {method}")
    receiver = value.func.value
    text = ast.get_source_segment(source, receiver)
    if value.args or value.keywords or text is None or value.lineno != value.end_lineno:
        raise NotCertain(f"line {line} is no plain call of {method}")
    return ReplaceExpression(file=file, line=receiver.lineno, column=receiver.col_offset, old=text, new=text)
