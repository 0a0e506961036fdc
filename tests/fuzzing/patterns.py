"""Collects every regular expression of the package, and measures each on texts that make bad ones slow.

A pattern such as `(\\w+?)Backward` takes the square of the time for a name of twice the length. From each pattern's
own parts, texts are built that repeat what one of its repeats matches, behind what comes before that repeat.

`python -m tests.fuzzing.patterns` measures all patterns, and prints the slow ones.
"""

import ast
import importlib
import itertools
import pkgutil
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import signal
import sys
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import ullage

PACKAGE: Final = Path(ullage.__file__).parent
FIRST, SHORT, LONG = 2_000, 8_000, 32_000  # characters
FEW_SECONDS_EACH: Final = 0.2e-6
"""The time for each character of a short text that needs no second look."""
MANY_SECONDS_EACH: Final = 1e-6
"""The time for each character of a long text, if the time grows with the square of the length."""
MOST_TIMES: Final = 8
"""The time for a text of four times the length: 4 times is linear, 16 times is quadratic."""
_MOST_CPU_SECONDS: Final = 1
_SIGNS: Final = "a1 ._/\\\"[(:<A='->-,|#*"
_PAIRED: Final = "a1 ._\\[(<A"
_METHODS: Final = frozenset({"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"})
_REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_SAMPLE_OF_CATEGORY: Final = {
    codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a", codes.CATEGORY_NOT_DIGIT: "a",
    codes.CATEGORY_NOT_SPACE: "a", codes.CATEGORY_NOT_WORD: ".",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression of the package."""

    place: str
    """Its file and line."""
    compiled: "re.Pattern[Any]"
    is_anchored: bool
    """Whether it is used only from the beginning of a text, by `match` and `fullmatch`."""


# ---- collecting


def patterns() -> list[Pattern]:
    """Return the patterns that are compiled while the modules are imported, and those in calls within functions."""
    found: dict[tuple[Any, int], tuple[str, int]] = {}
    original = re._compile  # type: ignore[attr-defined]

    def compile_and_note(pattern: Any, flags: int) -> "re.Pattern[Any]":
        compiled = original(pattern, flags)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "re":
            frame = frame.f_back
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE):
            found.setdefault((compiled.pattern, compiled.flags), (str(file.relative_to(PACKAGE)), frame.f_lineno))
        return compiled  # type: ignore[no-any-return]

    re._compile = compile_and_note  # type: ignore[attr-defined]
    sys.modules["torch"] = None  # type: ignore[assignment]  # modules that need it have constant patterns
    try:
        _import_all()
        _build_all()
    finally:
        re._compile = original  # type: ignore[attr-defined]
    for file, call in calls():
        if isinstance(call.args[0], ast.Constant):
            compiled = re.compile(call.args[0].value, _flags_of(call))
            found.setdefault((compiled.pattern, compiled.flags), (file, call.lineno))
    return [
        Pattern(f"{file}:{line}", re.compile(pattern, flags & ~re.DEBUG), _is_anchored(file, line))
        for (pattern, flags), (file, line) in sorted(found.items(), key=lambda each: each[1])
    ]


def _import_all() -> None:
    for module in pkgutil.walk_packages(ullage.__path__, "ullage."):
        if not module.name.startswith("ullage._child") and not module.name.endswith("__main__"):
            with suppress(ImportError):  # a library that is not installed, or a compiled part that is not a module
                importlib.import_module(module.name)


def _build_all() -> None:
    """Build the patterns that functions build of constants of the package."""
    from ullage.explaining.analysis.text import actions
    from ullage.recorded.message import counted_messages

    for _, pattern in actions._LESS_WEIGHTS:
        actions._shows(_OneFrame(), pattern)  # type: ignore[arg-type]
    for find in counted_messages.BY_FIND:
        counted_messages._head(find)


class _OneFrame:
    frames = (types.SimpleNamespace(file="a.py", statement="a"),)


def calls(*, in_functions: bool = False) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of a function of `re` that takes a pattern, with its file; all of them, or those in functions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "re." not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if in_functions else [tree]
        for node in itertools.chain.from_iterable(map(ast.walk, functions)):
            function = node.func if isinstance(node, ast.Call) else None
            is_of_re = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "re"
            if is_of_re and function.attr in _METHODS | {"compile"}:
                yield str(path.relative_to(PACKAGE)), node


def _flags_of(call: ast.Call) -> int:
    place = {"sub": 4, "subn": 4, "split": 3}.get(getattr(call.func, "attr", ""), 2)
    given = [each.value for each in call.keywords if each.arg == "flags"] + call.args[place : place + 1]
    return int(eval(ast.unparse(given[0]), {"re": re})) if given else 0


@cache
def _uses(file: str) -> tuple[dict[int, str], dict[str, set[str]]]:
    """Return the variable that each line of a file assigns to, and the methods of each variable that the file uses."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    variables, methods = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Call):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                variables |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), target.id)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            methods.setdefault(node.id, set()).add("")  # used in another way, if it is not a method
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            methods.setdefault(node.value.id, set()).add(node.attr)
    return variables, methods


def _is_anchored(file: str, line: int) -> bool:
    text = (PACKAGE / file).read_text(encoding="utf-8").splitlines()[line - 1]
    if re.search(r"\bre\.(?:match|fullmatch)\(", text):
        return True
    variables, methods = _uses(file)
    name = variables.get(line)
    if name is None:
        return False
    whole = (PACKAGE / file).read_text(encoding="utf-8")
    is_only_called = len(re.findall(rf"\b{name}\b", whole)) == 1 + len(
        re.findall(rf"\b{name}\.(?:full)?match\(", whole)
    )
    return is_only_called and methods.get(name, set()) <= {"", "match", "fullmatch"}


# ---- measuring


def slowness_of(pattern: Pattern) -> str | None:
    """Return on which text the time of a pattern grows faster than the text, or None."""
    for head, piece in texts_for(pattern.compiled):
        if _seconds(pattern, head, piece, 48) > 0.2 or (
            _seconds(pattern, head, piece, FIRST) > FEW_SECONDS_EACH * FIRST and _is_slow(pattern, head, piece)
        ):
            return f"{pattern.place}: {pattern.compiled.pattern[:200]!r} on {head!r} and {piece!r} repeated"
    return None


def _is_slow(pattern: Pattern, head: str, piece: str) -> bool:
    seconds = _seconds(pattern, head, piece, LONG)
    if not MANY_SECONDS_EACH * LONG < seconds < _MOST_CPU_SECONDS:
        return seconds >= _MOST_CPU_SECONDS
    long, short = (min(_seconds(pattern, head, piece, length) for _ in range(3)) for length in (LONG, SHORT))
    return long > max(MANY_SECONDS_EACH * LONG, MOST_TIMES * short)


def texts_for(compiled: "re.Pattern[Any]") -> list[tuple[str, str]]:
    """Return pairs of a beginning and a piece that is repeated behind it."""
    flags = compiled.flags & ~re.UNICODE if isinstance(compiled.pattern, bytes) else compiled.flags
    repeats = sorted(set(_repeats_in(parser.parse(compiled.pattern, flags), "")))
    heads = sorted({"", *(head for head, _ in repeats)}, key=len)[:6]
    own = {piece for head, body in repeats for piece in (body, head + body, head)}
    pairs = {(head, piece) for head in heads for piece in own | set(_SIGNS)}
    pairs |= {("", one + other) for one, other in itertools.product(_PAIRED, repeat=2)}
    pairs |= {("", piece + sign) for piece in own for sign in _SIGNS}
    return sorted((head, piece) for head, piece in pairs if piece)


def _seconds(pattern: Pattern, head: str, piece: str, length: int) -> float:
    text = (head + piece * (length // len(piece) + 1))[: max(length, len(head) + 1)] + "\x01"
    data: Any = text.encode("latin-1", "replace") if isinstance(pattern.compiled.pattern, bytes) else text
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_CPU_SECONDS)
    began = time.process_time()
    try:
        if pattern.is_anchored:
            pattern.compiled.match(data)
            pattern.compiled.fullmatch(data)
        else:
            for _ in pattern.compiled.finditer(data):
                pass
        return time.process_time() - began
    except TimeoutError:
        return float(_MOST_CPU_SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(number: int, frame: object) -> None:
    raise TimeoutError


def _repeats_in(parts: Any, head: str) -> Iterator[tuple[str, str]]:
    """Yield what comes before each long repeat of a pattern, and what is repeated, as short texts that match."""
    for part in parts:
        code, value = part
        if code in _REPEATS:
            if value[1] is codes.MAXREPEAT or value[1] >= 16:
                yield from ((head, body) for body in _samples(value[2]))
            yield from _repeats_in(value[2], head)
        for inner in _inner(code, value):
            yield from _repeats_in(inner, head)
        head += _samples([part])[0]


def _inner(code: Any, value: Any) -> list[Any]:
    if code is codes.BRANCH:
        return list(value[1])
    if code is codes.SUBPATTERN:
        return [value[3]]
    if code is codes.ATOMIC_GROUP:
        return [value]
    return [value[1]] if code in (codes.ASSERT, codes.ASSERT_NOT) else []


def _samples(parts: Any) -> list[str]:
    """Return a short text that a part of a pattern matches; of a choice at its end, one for each alternative."""
    texts = [""]
    for code, value in parts:
        if code in _REPEATS:
            ends = [_samples(value[2])[0] * value[0]]
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            ends = [""]
        else:
            ends = [end for inner in _inner(code, value) for end in _samples(inner)] or [_sign(code, value)]
        texts = [texts[0] + end for end in ends[:8]]
    return texts


def _sign(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if code is codes.ANY:
        return "a"
    if code is not codes.IN:
        return ""
    if value[0][0] is codes.NEGATE:
        return next((sign for sign in "a1 .-_:/xZ\n" if not any(_holds(*each, sign) for each in value[1:])), "\u00e9")
    first, of = value[0]
    return chr(of) if first is codes.LITERAL else chr(of[0]) if first is codes.RANGE else _SAMPLE_OF_CATEGORY[of]


def _holds(code: Any, value: Any, sign: str) -> bool:
    if code is codes.LITERAL:
        return ord(sign) == value
    if code is codes.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    sample = _SAMPLE_OF_CATEGORY.get(value, "")
    same = {"1": str.isdigit, " ": str.isspace, "a": lambda one: one.isalnum() or one == "_"}
    return bool(same.get(sample, lambda one: not one.isalnum())(sign))


def main() -> int:
    """Measure all patterns, or with the arguments 2 and 4 the second quarter; print those that are slow."""
    part, parts = map(int, sys.argv[1:] or (1, 1))
    some = patterns()[part - 1 :: parts]
    slow = [found for pattern in some if (found := slowness_of(pattern)) is not None]
    print("\n".join((*slow, f"{len(some)} patterns, {len(slow)} of them slow")))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
