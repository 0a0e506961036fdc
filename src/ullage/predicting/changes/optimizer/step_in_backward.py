"""Update each parameter and free its gradient as soon as backward has computed the gradient."""

import ast
import functools
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.optimizer.optimizer_default import own_optimizers
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import OptimizerFacts, TrainingFacts
from ullage.predicting.changes.training.wrapping import wrap
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.edit import InsertAfter, NotCertain, Recipe
from ullage.predicting.editing.scope import names_of, parse, spans

_ENDS: Final = ("", *range(2, 100))
_NOT_BY_PARAMETER: Final = frozenset({"LBFGS", "Muon", "SparseAdam"})
_LINES: Final = """\
{steppers} = {{
    parameter: (type({optimizer})([{{**group, "params": [parameter]}}]), group)
    for group in {optimizer}.param_groups
    for parameter in group["params"]
}}


def {step}(parameter):
    stepper, group = {steppers}[parameter]
    stepper.param_groups[0] |= {{**group, "params": [parameter]}}  # options that a scheduler has changed
    stepper.step()
    stepper.zero_grad()


for {parameter} in {steppers}:  # in checkpoints, save the state_dict() of each
    {parameter}.register_post_accumulate_grad_hook({step})
"""
_WORDS: Final = {"steppers": "steppers", "step": "step_at_once", "parameter": "stepped"}


def _install(applied: AppliedChange) -> None:
    made: set[int] = set()  # optimizers that this change created, which have one parameter each

    def split(optimizer: Any) -> None:
        kind = type(optimizer)
        if made or kind.__name__ in _NOT_BY_PARAMETER:
            if not made:
                applied.fail(f"{kind.__name__} does not update each parameter independently")
            return
        made.add(id(optimizer))
        steppers = {
            parameter: (kind([{**group, "params": [parameter]}]), group)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

        def step(parameter: Any) -> None:
            stepper, group = steppers[parameter]
            stepper.param_groups[0] |= {**group, "params": [parameter]}
            stepper.step()
            stepper.zero_grad()

        for parameter in steppers:
            parameter.register_post_accumulate_grad_hook(step)
        applied.took_effect()

    # This wraps each class's constructor, because the hook `optimizer_made` runs inside the constructor, before it
    # returns.
    def init(kind: type, original: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> None:
        original(optimizer, *arguments, **keywords)
        if type(optimizer) is kind:  # AdamW's constructor calls Adam's constructor
            split(optimizer)

    for kind in own_optimizers(applied.loop.torch.optim):
        wrap(kind, "__init__", functools.partial(init, kind))


def _applicable(facts: TrainingFacts) -> Applicable:
    loop, wrapper = facts.loop, facts.model.wrapper if facts.model is not None else ""
    if not facts.optimizers:
        return Applicable(why_not="no optimizer of torch.optim took a step")
    first = facts.optimizers[0]
    is_unknown = not first.module.startswith("torch.optim") or first.kind in _NOT_BY_PARAMETER
    return Applicable.unless(
        (len(facts.optimizers) > 1, "several optimizers take steps"),
        (is_unknown, f"{first.kind} may not update each parameter independently"),
        (loop.clips_gradients, "the script clips the gradients of all parameters together"),
        (loop.has_scaler, "a GradScaler checks all gradients before the step"),
        (loop.passes_per_step > 1, "the script adds up the gradients of several backward passes"),
        (loop.library, f"the training loop belongs to {loop.library}"),
        (wrapper, f"{wrapper} exchanges gradients between ranks"),
    )


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    snippet = _LINES.format(optimizer="optimizer", **_WORDS)
    try:
        return Recipe(snippet=snippet, edits=(_edit(facts.optimizers[0]),))
    except (NotCertain, IndexError):
        return Recipe(snippet=snippet)


def _edit(optimizer: OptimizerFacts) -> InsertAfter:
    made = optimizer.made
    if made is None:
        raise NotCertain("no line of the user's code creates the optimizer")
    source = source_of(made.file)
    tree = parse(source)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and spans(node, made.line)]
    if len(found) != 1 or len(found[0].targets) != 1 or not isinstance(found[0].targets[0], ast.Name | ast.Attribute):
        raise NotCertain("the line that creates the optimizer does not assign it to one variable")
    taken = names_of(tree)
    names = {key: next(f"{word}{end}" for end in _ENDS if f"{word}{end}" not in taken) for key, word in _WORDS.items()}
    text = _LINES.format(optimizer=ast.unparse(found[0].targets[0]), **names)
    edit = InsertAfter(file=made.file, line=found[0].lineno, text=text)
    edited(source, (edit,))  # raises NotCertain if the edit does not have a certain place
    return edit


CHANGE: Final = Change(
    key="step_in_backward",
    name="optimizer steps during the backward pass",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation=(
        "each parameter has its own optimizer, which steps as soon as the gradient is computed and then frees the "
        "gradient; state_dict is split by parameter"
    ),
    settings_for=_applicable,
    install=_install,
    recipe_for=_recipe_for,
)
