"""Guess from a script's source whether it reads GPU values that change what it does.

If not, values are not computed at first, because recording makes every operation slower. If the script reads such a
value anyway, ullage starts the run again. When in doubt, the guess is yes.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ullage.gpu.values.consequence import may_decide

# They read numbers from the GPU, or return a number of elements that depends on a condition.
_READING: Final = frozenset(
    {
        *("all", "allclose", "any", "argwhere", "bernoulli", "bincount", "bucketize", "Categorical", "coalesce", "cpu"),
        *("detect_anomaly", "detection", "equal", "generate", "GradScaler", "histc", "histogram", "is_nonzero"),
        *("isfinite", "isin", "isinf", "isnan", "masked_scatter", "masked_select", "multinomial", "nested"),
        *("nested_tensor", "nms", "nonzero", "numpy", "ops", "pack_padded_sequence", "pad_packed_sequence"),
        *("repeat_interleave", "searchsorted", "set_detect_anomaly", "sparse", "to_sparse", "tolist", "unique"),
        "unique_consecutive",
    }
)
_MODULES: Final = frozenset({"detection", "distributed", "distributions", "generation", "nested", "ops", "sparse"})
_KEYWORDS: Final = frozenset({"sparse", "error_if_nonfinite"})
# They may fail when they are called a second time, so the script cannot just run again.
_DONE_ONCE: Final = frozenset({"mkdir", "makedirs", "rename", "rmtree", "unlink", "input", "copytree"})
_PACKAGES: Final = frozenset({"torch", "torchvision", "numpy", "tqdm"})
_MOST_FILES: Final = 20
_MOST_CHARACTERS: Final = 400_000


def seems_to_read_none(script: Path) -> bool:
    """Return whether a script seems to read no GPU value that may change what it does.

    Modules that the script imports from its own folder are checked, too.
    """
    waiting, seen, left = [script], {script}, _MOST_CHARACTERS
    while waiting:
        file = waiting.pop()
        source = "".join(linecache.getlines(str(file)))
        left -= len(source)
        if not source or left < 0:
            return False
        try:
            tree = ast.parse(source)
        except (ValueError, SyntaxError, RecursionError):
            return False
        if any(_may_read(part, file) for part in ast.walk(tree)):
            return False
        for name in _imported(tree):
            if name in sys.stdlib_module_names or name in _PACKAGES:
                continue
            beside = script.parent / f"{name}.py"
            if not beside.is_file() or len(seen) >= _MOST_FILES:
                return False
            if beside not in seen:
                seen.add(beside)
                waiting.append(beside)
    return True


def _imported(tree: ast.Module) -> Iterator[str]:
    for part in ast.walk(tree):
        match part:
            case ast.Import(names=names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=module, level=level):
                yield (module or "").partition(".")[0] if level == 0 else ""


def _may_read(part: ast.AST, file: Path) -> bool:
    match part:
        case ast.Attribute(attr="item"):
            return may_decide(str(file), part.lineno)
        case ast.Attribute(attr=name):
            return name in _READING or name in _DONE_ONCE
        case ast.ImportFrom(module=module, names=names):
            taken = {each.name for each in names}
            return bool(taken & (_READING | _DONE_ONCE) or (taken | set((module or "").split("."))) & _MODULES)
        case ast.Import(names=names):
            return any(_MODULES & set(each.name.split(".")) for each in names)
        case ast.keyword(arg=name):
            return name in _KEYWORDS
        case ast.Call(func=ast.Name(id="input") | ast.Name(id="exec") | ast.Name(id="eval")):
            return True
        case ast.Call(func=ast.Attribute(attr="where"), args=[_]):
            return True
        case ast.Subscript(slice=index):
            return _is_mask(index)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return any(isinstance(each, ast.Call) and _is_reduction(each) for each in ast.walk(test))
    return False


def _is_mask(index: ast.AST) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for part in parts:
        if isinstance(part, ast.Compare) or (isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Invert)):
            return True
        if isinstance(part, ast.Name) and any(word in part.id.lower() for word in ("mask", "keep", "valid", "select")):
            return True
    return False


def _is_reduction(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in {"max", "min", "sum", "mean", "norm", "abs"}
