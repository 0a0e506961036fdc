"""Write source edits that put the forward and backward passes in a loop over parts of the batch.

    items = len(tokens)
    for tokens in tokens.chunk(4):
        loss = model(tokens).mean()
        loss = loss * (len(tokens) / items)
        loss.backward()

If the loss is a mean over the items, the gradients add up to those of the full batch.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.predicting.editing.edit import (
    AddKeyword,
    InsertAfter,
    InsertBefore,
    NotCertain,
    RemoveStatement,
    ReplaceExpression,
    SourceEdit,
    WrapStatements,
)
from ullage.predicting.editing.scope import (
    LOOPS,
    BlockPlace,
    Fate,
    Scope,
    arguments_of,
    called_name,
    common_level,
    end_line,
    fate_in,
    free_name,
    is_read_behind,
    is_shared,
    levels_to,
    operand,
    own_nodes,
    parse,
    scope_of,
    spans,
    stored_in,
)

_COUNTERS: Final = frozenset({"range", "count"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLoss:
    """A call of `cross_entropy` that computes the loss as a mean over the targets that are not ignored."""

    line: int
    ignore_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlaces:
    """The lines of the forward and backward pass that are put into a loop over parts of the batch."""

    file: str
    function: str
    """The qualified name of the user's function that calls backward."""
    forward_line: int | None
    """The line that runs the forward pass, or None if another function runs it."""
    backward_line: int
    batch: Mapping[str, bool]
    """Maps the name of each variable with a batch tensor to a boolean. True: the tensor has one row per batch item."""
    is_sum: bool = False
    """Whether the loss is a sum over the batch. If so, the loss of a part is not scaled."""
    counted: CountedLoss | None = None
    """The call of `cross_entropy` that computes the loss, or None if the loss is computed differently."""


@dataclass(slots=True)
class _Region:
    scope: Scope
    levels: list[BlockPlace]
    statements: list[ast.stmt]
    last: int
    call: ast.Call
    loss: ast.expr
    is_sum: bool


def in_parts(source: str, passes: PassPlaces, parts: int) -> tuple[SourceEdit, ...]:
    """Return the edits that split a batch into parts for gradient accumulation.

    Raises:
        NotCertain: the edits might have other effects, or might not work.
    """
    region = _region(source, passes)
    zeroing = _check_statements(region)
    split = _split_of(region, passes)
    share = _share_of(region, passes, split)
    names = {word: free_name(region.scope, word) for word in ("whole", "losses")}
    before = [zeroing[1]] if zeroing else []
    before += share.before
    after: list[str] = []
    if any(is_read_behind(region.levels, name, last=region.last) for name in split.names):
        before.append(f"{names['whole']} = {split.target}")
        after.append(f"{split.target} = {names['whole']}")
    scaling = [f"{{loss}} = {{loss}}{share.operation}"] if share.operation else []
    if isinstance(region.loss, ast.Name) and is_read_behind(region.levels, region.loss.id, last=region.last):
        before.append(f"{names['losses']} = []")
        scaling.append(f"{names['losses']}.append({{loss}}.detach())")
        after.append(f"{region.loss.id} = sum({names['losses']})")
    first, last = region.statements[0].lineno, end_line(region.statements[-1])
    edits: list[SourceEdit] = [
        WrapStatements(file=passes.file, first_line=first, last_line=last, header=split.header(parts)),
        *share.edits,
    ]
    if before:
        edits.append(InsertBefore(file=passes.file, line=first, text="\n".join(before)))
    if scaling:
        edits.append(_scaled(region, passes.file, share.operation, "\n".join(scaling)))
    if after:
        edits.append(InsertAfter(file=passes.file, line=region.statements[-1].lineno, text="\n".join(after)))
    if zeroing:
        edits.append(RemoveStatement(file=passes.file, line=zeroing[0]))
    return tuple(edits)


# With this scaling, the losses of all parts add up to the loss of the full batch.
@dataclass(frozen=True, slots=True, kw_only=True)
class _PartWeight:
    before: Sequence[str]
    # The operator and operand that scale the loss of a part. Empty if the loss is a sum over the batch.
    operation: str
    edits: Sequence[SourceEdit] = ()


def _share_of(region: _Region, passes: PassPlaces, split: "_Split") -> _PartWeight:
    if passes.is_sum:
        return _PartWeight(before=(), operation="")
    call = _counted_call(region, passes.counted, split) if passes.counted is not None else None
    if call is not None and passes.counted is not None:
        count = free_name(region.scope, "count")
        summed = AddKeyword(
            file=passes.file, line=call.lineno, function="cross_entropy", keyword="reduction", value='"sum"'
        )
        counting = f"{count} = ({operand(call.args[1])} != {passes.counted.ignore_index}).sum()"
        return _PartWeight(before=(counting,), operation=f" / {count}", edits=(summed,))
    items = free_name(region.scope, "items")
    return _PartWeight(before=(f"{items} = {split.length}",), operation=f" * ({split.length} / {items})")


def _counted_call(region: _Region, counted: CountedLoss, split: "_Split") -> ast.Call | None:
    if not isinstance(region.loss, ast.Name):
        return None
    given = [statement for statement in region.statements if region.loss.id in stored_in(statement)]
    if len(given) != 1 or not isinstance(given[0], ast.Assign) or not isinstance(given[0].value, ast.Call):
        return None
    call = given[0].value
    if called_name(call) != "cross_entropy" or not spans(call, counted.line) or len(call.args) != 2:
        return None
    if any(each.arg not in ("ignore_index", "reduction") for each in call.keywords):
        return None
    words = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
    is_early = words and words <= set(split.names) and not words & _assigned_in(region)
    return call if is_early else None


# ---- the statements


def _region(source: str, passes: PassPlaces) -> _Region:
    scope = scope_of(parse(source), passes.function)
    backward = levels_to(scope, passes.backward_line)
    call = _backward_call(backward[-1], passes.backward_line)
    loss = _loss_of(call)
    lines = [passes.forward_line] if passes.forward_line is not None else []
    if isinstance(loss, ast.Name):
        lines.append(_assigned_before(scope, loss.id, passes.backward_line))
    if not lines:
        raise NotCertain("the forward pass is in another function")
    forward = min((levels_to(scope, line) for line in lines), key=lambda levels: levels[-1].statement.lineno)
    if forward[-1].statement.lineno > backward[-1].statement.lineno:
        raise NotCertain("the forward pass comes after the backward pass in the source code")
    depth, first, last = common_level(forward, backward)
    statements = first.block[first.index : last.index + 1]
    loops = [node for each in statements for node in own_nodes(each) if isinstance(node, (*LOOPS, ast.Try))]
    if loops:
        raise NotCertain("a loop or a try statement is between the forward and the backward pass")
    return _Region(scope, forward[: depth + 1], statements, last.index, call, loss, passes.is_sum)


def _backward_call(place: BlockPlace, line: int) -> ast.Call:
    if sum(spans(each, line) for each in place.block) > 1:
        raise NotCertain(f"line {line} contains several statements")
    calls = _method_calls(place.statement, "backward")
    if len(calls) != 1:
        raise NotCertain("the loop does not call backward directly")
    return calls[0]


# Returns the loss without a gradient scaler around it.
def _loss_of(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    loss = call.func.value
    if call.args:
        if len(call.args) > 1 or (isinstance(loss, ast.Name) and loss.id != "accelerator"):
            raise NotCertain("this call of backward has an unknown form")
        loss = call.args[0]
    if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "scale":
        if len(loss.args) != 1:
            raise NotCertain("this call of scale has an unknown form")
        loss = loss.args[0]
    return loss


def _assigned_before(scope: Scope, name: str, line: int) -> int:
    found = [
        node.lineno
        for node in own_nodes(scope)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) and node.lineno < line
    ]
    if not found:
        raise NotCertain(f"{name} is not assigned in the function")
    return max(found)


# The returned `zero_grad` call has to move before the loop over parts.
def _check_statements(region: _Region) -> tuple[int, str] | None:
    zeroing = None
    for statement in region.statements:
        if _method_calls(statement, "zero_grad"):
            if not isinstance(statement, ast.Expr) or zeroing is not None:
                raise NotCertain(
                    "zero_grad is called inside a compound statement between the forward and the backward pass"
                )
            zeroing = (statement.lineno, ast.unparse(statement))
            continue
        for node in own_nodes(statement):
            _check_node(region, node)
    loss = region.loss.id if isinstance(region.loss, ast.Name) else ""
    for name in sorted(_assigned_in(region) - {loss}):
        if is_read_behind(region.levels, name, last=region.last):
            raise NotCertain(f"{name} is read after the backward pass, where it would be the value of the last part")
    return zeroing


def _assigned_in(region: _Region) -> set[str]:
    nodes = [node for statement in region.statements for node in own_nodes(statement)]
    added_to = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    return {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in added_to
    }


def _check_node(region: _Region, node: ast.AST) -> None:
    if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom | ast.Await | ast.Delete):
        raise NotCertain("the loop may be left between the forward and the backward pass")
    if isinstance(node, ast.AugAssign) and not _adds_up(region, node):
        raise NotCertain(f"`{ast.unparse(node)[:60]}` would run once per part")
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(not isinstance(each, ast.Name | ast.Tuple | ast.List) for each in targets):
            raise NotCertain("an object is modified between the forward and the backward pass")
    if isinstance(node, ast.Expr) and node.value is not region.call and not isinstance(node.value, ast.Constant):
        raise NotCertain(f"`{ast.unparse(node)[:60]}` would run once per part")
    match node:
        case ast.keyword(arg="reduction", value=ast.Constant(value="mean" | "none")):
            pass
        case ast.keyword(arg="reduction") if not region.is_sum:
            raise NotCertain("the loss is a sum over the batch, and must not be scaled")


# A `+=` statement adds up if it computes the same sum over all parts of a batch as over the full batch.
def _adds_up(region: _Region, node: ast.AugAssign) -> bool:
    if not isinstance(node.target, ast.Name):
        return False
    if fate_in(region.statements, node.target.id) is Fate.LOST:
        return True  # each part assigns the name a new value first
    if not isinstance(node.op, ast.Add):
        return False
    words = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    methods = {each.attr for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
    if isinstance(region.loss, ast.Name) and region.loss.id in words:
        return True  # the loss is already scaled by its share at this statement
    return "mean" not in methods and bool(methods & {"sum", "size", "shape"} or "len" in words)


def _method_calls(statement: ast.stmt, name: str) -> list[ast.Call]:
    calls = [node for node in own_nodes(statement) if isinstance(node, ast.Call)]
    return [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == name]


def _scaled(region: _Region, file: str, operation: str, scaling: str) -> SourceEdit:
    loss = region.loss
    if not isinstance(loss, ast.Name):
        text = ast.unparse(loss)
        return ReplaceExpression(
            file=file, line=loss.lineno, column=loss.col_offset, old=text, new=f"({text}{operation})"
        )
    text = scaling.format(loss=loss.id)
    place = levels_to(region.scope, _assigned_before(region.scope, loss.id, region.call.lineno))
    if any(isinstance(level.statement, ast.If | ast.Match) for level in place[len(region.levels) - 1 :]):
        statement = levels_to(region.scope, region.call.lineno)[-1].statement
        return InsertBefore(file=file, line=statement.lineno, text=text)
    return InsertAfter(file=file, line=place[-1].statement.lineno, text=text)


# ---- the batch


@dataclass(frozen=True, slots=True)
class _Split:
    names: Sequence[str]
    # One of "tensors", "mapping" and "sequence".
    kind: str

    @property
    def target(self) -> str:
        return ", ".join(self.names)

    @property
    def length(self) -> str:
        first = self.names[0]
        if self.kind == "mapping":
            return f"len(next(iter({first}.values())))"
        return f"len({first}[0])" if self.kind == "sequence" else f"len({first})"

    def header(self, parts: int) -> str:
        first = self.names[0]
        if self.kind == "mapping":
            pieces = f"zip(*(value.chunk({parts}) for value in {first}.values()))"
            return f"for {first} in [dict(zip({first}, part)) for part in {pieces}]:"
        if self.kind == "sequence":
            return f"for {first} in zip(*(value.chunk({parts}) for value in {first})):"
        if len(self.names) == 1:
            return f"for {first} in {first}.chunk({parts}):"
        return f"for {self.target} in zip({', '.join(f'{name}.chunk({parts})' for name in self.names)}):"


def _split_of(region: _Region, passes: PassPlaces) -> _Split:
    kinds: dict[str, str] = {}
    for name in sorted(_given(region)):
        uses = _uses_of(region.statements, name)
        if passes.batch.get(name, True) is False or _is_neutral(region, name, uses):
            continue
        kind = "tensors" if passes.batch.get(name) else _kind_by_use(uses)
        if kind is None:
            raise NotCertain(f"the file does not show whether {name} has one row for every item of the batch")
        kinds[name] = kind
    if not kinds:
        raise NotCertain("the function that calls backward does not have the batch in a variable")
    if len(kinds) > 1 and set(kinds.values()) != {"tensors"}:
        raise NotCertain(f"the batch is in {' and '.join(kinds)}, which are split in different ways")
    if any(is_shared(region.scope, name) for name in kinds):
        raise NotCertain("a nested function reads the batch")
    return _Split(list(kinds), next(iter(kinds.values())))


def _given(region: _Region) -> set[str]:
    loops = [level for level in region.levels[:-1] if isinstance(level.statement, LOOPS)]
    if loops:
        loop = loops[-1].statement
        new = stored_in(loop)
    else:
        new = arguments_of(region.scope) | set().union(*(stored_in(each) for each in region.scope.body))
    return {name for name in new if fate_in(region.statements, name) is Fate.READ}


# Each use is the list of enclosing syntax nodes, the innermost first.
def _uses_of(statements: Sequence[ast.stmt], name: str) -> list[list[ast.AST]]:
    uses: list[list[ast.AST]] = []

    def visit(node: ast.AST, around: list[ast.AST]) -> None:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            uses.append([node, *reversed(around)])
        for child in ast.iter_child_nodes(node):
            visit(child, [*around, node])

    for statement in statements:
        visit(statement, [])
    return uses


# A counter, a number or a callable certainly does not contain the batch.
def _is_neutral(region: _Region, name: str, uses: list[list[ast.AST]]) -> bool:
    values = [
        node.value
        for level in region.levels
        for statement in level.block
        for node in own_nodes(statement)
        if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
    ]
    if values and all(isinstance(value, ast.Constant) for value in values):
        return True
    if name in ("self", "cls"):
        return all(_calls_what_it_has(use) or _is_a_place(use) for use in uses)
    if any(name in _counters(level.statement) for level in region.levels if isinstance(level.statement, ast.For)):
        return True
    return all(_is_called(use) or _is_a_place(use) for use in uses)


def _counters(loop: ast.For) -> set[str]:
    word = called_name(loop.iter) if isinstance(loop.iter, ast.Call) else ""
    if word in _COUNTERS:
        return stored_in(loop.target)
    if word == "enumerate" and isinstance(loop.target, ast.Tuple):
        return stored_in(loop.target.elts[0])
    return set()


# Whether the expression calls the variable, or one of its methods that tensors do not have.
def _is_called(use: list[ast.AST]) -> bool:
    if len(use) > 1 and isinstance(use[1], ast.Call) and use[1].func is use[0]:
        return True
    if len(use) > 2 and isinstance(use[1], ast.Attribute) and isinstance(use[2], ast.Call) and use[2].func is use[1]:
        return use[1].attr in ("backward", "scale", "autocast", "accumulate", "no_sync") or use[1].attr.endswith("loss")
    return False


# As in `self.model(...)` or `self.optimizer.zero_grad()`.
def _calls_what_it_has(use: list[ast.AST]) -> bool:
    inner = use[0]
    for outer in use[1:]:
        if isinstance(outer, ast.Call):
            return outer.func is inner
        if not isinstance(outer, ast.Attribute):
            return False
        inner = outer
    return False


# Whether the variable is used as a device or data type, as in `.to(device)` or `autocast(device)`.
def _is_a_place(use: list[ast.AST]) -> bool:
    call = next((node for node in use if isinstance(node, ast.Call)), None)
    if call is None or call.func in use:
        return False
    return called_name(call) in ("to", "autocast", "cuda", "device")


def _kind_by_use(uses: list[list[ast.AST]]) -> str | None:
    kinds = {_kind_of_one(use) for use in uses}
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of_one(use: list[ast.AST]) -> str | None:
    above = use[1] if len(use) > 1 else None
    if isinstance(above, ast.keyword) and above.arg is None:
        return "mapping"
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Tuple) and len(above.targets) == 1:
        return "sequence"
    if isinstance(above, ast.Subscript) and above.value is use[0]:
        index = above.slice
        if isinstance(index, ast.Constant):
            return {str: "mapping", int: "sequence"}.get(type(index.value))
        first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else None
        if isinstance(first, ast.Slice) and first.lower is None and first.upper is None and first.step is None:
            return "tensors"
    return None
