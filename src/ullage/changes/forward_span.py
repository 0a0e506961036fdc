"""The statements from the forward pass to before the backward pass: where a `with` around them would be written."""

from ullage.changes.facts import TrainingFacts
from ullage.changes.user_source import source_of
from ullage.editing.edit import NotCertain, WrapStatements
from ullage.editing.scope import common_level, levels_to, parse, scope_of


def around_forward(facts: TrainingFacts, header: str) -> WrapStatements:
    """Return the edit that puts a header around the forward pass and all that follows until the backward pass.

    Raises:
        NotCertain: the two do not stand in one function, one behind the other.
    """
    forward, backward = facts.loop.forward_in_loop, facts.loop.backward
    if forward is None or backward is None:
        raise NotCertain("the forward and the backward pass are not in one function")
    scope = scope_of(parse(source_of(backward.file)), backward.function)
    _, first, last = common_level(levels_to(scope, forward.line), levels_to(scope, backward.line))
    if first.index >= last.index:
        raise NotCertain("one statement runs the forward and the backward pass")
    before = last.block[last.index - 1]
    return WrapStatements(
        file=backward.file,
        first_line=first.statement.lineno,
        last_line=before.end_lineno or before.lineno,
        header=header,
    )
