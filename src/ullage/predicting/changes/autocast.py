"""Turn on mixed precision by autocast around the forward pass, or by an argument of the training library."""

import ast
import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.source import around_forward, source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.changes.training.wrapping import watch_calls, wrap
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

_BFLOAT16_SINCE: Final = (8, 0)
_HALF: Final = ("float16", "bfloat16")
_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16"}
_KEYWORDS: Final = {
    "lightning": ("precision", {"bfloat16": "bf16-mixed", "float16": "16-mixed"}),
    "accelerate": ("mixed_precision", _SHORT),
}


def _settings_for(facts: TrainingFacts) -> Applicable:
    model = facts.model
    if model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    if facts.loop.autocast is not None:
        return Applicable(why_not=f"the forward pass runs under autocast to {facts.loop.autocast} already")
    if model.dtypes and model.dtypes[0] in _HALF:
        return Applicable(why_not=f"the model's parameters are of type {model.dtypes[0]} already")
    if facts.compute_capability >= _BFLOAT16_SINCE:
        return Applicable(settings=("bfloat16",))
    if facts.loop.has_scaler:
        return Applicable(why_not="the script scales gradients itself")
    if len(facts.optimizers) != 1 and not facts.loop.library:
        return Applicable(why_not="a GPU without bfloat16 needs a GradScaler, which supports only one optimizer here")
    return Applicable(settings=("float16",))


# With float16, a gradient scaler scales the loss before the backward pass and the gradients before the optimizer's
# step.
class _Autocast:
    def __init__(self, applied: AppliedChange) -> None:
        self._applied = applied
        self._torch: Any = applied.loop.torch
        self._argument = _PrecisionArgument(applied)
        self._context: Any = None
        self._scaler: Any = None
        self._optimizers: list[weakref.ref[Any]] = []
        loop = applied.loop
        loop.before_forward.append(self._enter)
        loop.before_backward.append(self._leave)
        if applied.setting == "float16":
            self._wrap_clipping()
            loop.backward_roots.append(self._scaled)
            loop.around_step.append(self._step)
            loop.optimizer_made.append(self._optimizer_made)

    def _enter(self, module: Any, frame: object) -> None:
        if self._context is not None or self._argument.is_passed:
            return
        device = next(module.parameters()).device.type
        if self._torch.is_autocast_enabled(device):
            self._applied.refuse("the forward pass runs under autocast already")
            return
        self._context = self._torch.autocast(device, dtype=getattr(self._torch, self._applied.setting))
        self._context.__enter__()
        self._applied.took_effect()

    def _leave(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    # ---- float16

    def _optimizer_made(self, optimizer: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        if self._scaler is None:
            self._scaler = self._torch.amp.GradScaler("cuda" if self._torch.cuda.is_available() else "cpu")

    @property
    def _scales(self) -> bool:
        return self._scaler is not None and not self._argument.is_passed

    def _scaled(self, roots: Any) -> Any:
        if not self._scales:
            return roots
        return self._scaler.scale(roots if isinstance(roots, self._torch.Tensor) else tuple(roots))

    def _step(self, optimizer: Any, take: Callable[[], Any]) -> Any:
        if not self._scales or self._scaler._scale is None:  # no loss was scaled for a backward pass
            return take()
        result = self._scaler.step(optimizer)
        self._scaler.update()
        return result

    def _wrap_clipping(self) -> None:
        for owner in (self._torch.nn.utils, self._torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                wrap(owner, name, self._clip)

    def _clip(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self._scales:
            for optimizer in filter(None, (each() for each in self._optimizers)):
                self._scaler.unscale_(optimizer)
        return original(*arguments, **keywords)


class _PrecisionArgument:
    def __init__(self, applied: AppliedChange) -> None:
        self.is_passed = False
        self._applied = applied
        watch_calls("transformers", self._transformers)
        for library, (name, values) in _KEYWORDS.items():
            watch_calls(library, functools.partial(self._keyword, name, values[applied.setting]))

    def _transformers(self, arguments: Any, keywords: dict[str, Any]) -> None:
        if arguments.bf16 or arguments.fp16:
            self._applied.refuse("the script passes bf16 or fp16 to TrainingArguments itself")
            return
        setattr(arguments, _SHORT[self._applied.setting], True)
        self._note()

    def _keyword(self, name: str, value: str, made: object, keywords: dict[str, Any]) -> None:
        if keywords.get(name) is not None:
            self._applied.refuse(f"the script passes {name} itself")
            return
        keywords[name] = value
        self._note()

    def _note(self) -> None:
        self.is_passed = True
        self._applied.took_effect()


# ---- source code


def _keyword_of(library: str, setting: str) -> tuple[str, str]:
    if library == "transformers":
        return _SHORT[setting], "True"
    name, values = _KEYWORDS[library]
    return name, f'"{values[setting]}"'


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    call = facts.loop.library_call
    if facts.loop.library:
        keyword, value = _keyword_of(facts.loop.library, setting)
        if call is None:
            return Recipe(snippet=f"{keyword}={value}")
        edit = AddKeyword(
            file=call.place.file, line=call.place.line, function=call.function, keyword=keyword, value=value
        )
        return Recipe(snippet=f"{call.function}(..., {keyword}={value})", edits=(edit,))
    header = f'with torch.autocast("cuda", dtype=torch.{setting}):'
    snippet = f"{header}\n    loss = ...  # the forward pass and the loss, not the backward pass"
    is_scaled = setting == "float16"
    if is_scaled:
        snippet = (
            f"scaler = torch.amp.GradScaler()\n{snippet}\nscaler.scale(loss).backward()\n"
            "scaler.unscale_(optimizer)  # before gradients are clipped\nscaler.step(optimizer)\nscaler.update()"
        )
    return Recipe.placed(snippet, lambda: [*around_forward(facts, header), *(_scaled(facts) if is_scaled else ())])


def _scaled(facts: TrainingFacts) -> list[SourceEdit]:
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
        raise NotCertain("the forward pass is not in a loop")
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
    statement = levels_to(scope, line)[-1].statement
    value = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != method:
        raise NotCertain(f"line {line} is not a simple call of {method}")
    receiver = value.func.value
    text = ast.get_source_segment(source, receiver)
    if value.args or value.keywords or text is None or value.lineno != value.end_lineno:
        raise NotCertain(f"line {line} is not a simple call of {method}")
    return ReplaceExpression(file=file, line=receiver.lineno, column=receiver.col_offset, old=text, new=text)


CHANGE: Final = Change(
    key="autocast",
    name="mixed precision",
    title_for=lambda setting: f"mixed precision in {setting}",
    cost=ChangeCost.NUMERICS,
    gradients=Gradients.CHANGED,
    explanation="matrix products, and what they save for the backward pass, take 2 bytes per number in place of 4",
    settings_for=_settings_for,
    install=_Autocast,
    recipe_for=_recipe_for,
)
