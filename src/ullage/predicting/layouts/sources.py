"""Collect the source files that affect a run: the script, the user's modules, and files named as arguments."""

# Modules are found by their import statements, without running any code. If a file imports by name
# (`importlib.import_module`), all Python files below the script's folder are included.

import ast
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ullage.base.foreign_files import read_regular

_MOST_BYTES: Final = 64 << 20
_MOST_FILES: Final = 5_000
_BY_NAME: Final = re.compile(rb"\b(import_module|__import__|run_path|run_module|exec|spec_from_file_location)\b")
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def sources_of(words: Sequence[str]) -> dict[str, bytes]:
    """Return a mapping from absolute paths to the contents of the files that affect a command.

    Args:
        words: the script with its arguments, or a command that starts with "-m", torchrun or any program.
    """
    found: dict[str, bytes] = {}
    scripts = [Path(word) for word in words if word.endswith((".py", ".ipynb"))]
    roots = _roots([script.absolute().parent for script in scripts])
    waiting = [*scripts, *_module_behind_m(words, roots)]
    while waiting:
        path = waiting.pop().absolute()
        if str(path) in found or len(found) > _MOST_FILES:
            continue
        content = _content(path)
        if content is None:
            continue
        found[str(path)] = content
        waiting += _imported(path, content, roots)
        if _BY_NAME.search(content):
            waiting += [each for each in _below(path.parent) if str(each) not in found]
    for word in words:
        path = Path(word.rpartition("=")[2] if "=" in word else word).absolute()
        if str(path) not in found and _is_file(path) and (content := _content(path)) is not None:
            found[str(path)] = content
    return found


def _roots(folders: Sequence[Path]) -> list[Path]:
    standard = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    others = [Path(path or ".").absolute() for path in sys.path]
    return list(
        dict.fromkeys(
            [*folders]
            + [each for each in others if not _is_installed(each) and each.resolve() not in standard and each.is_dir()]
        )
    )


def _module_behind_m(words: Sequence[str], roots: Sequence[Path]) -> list[Path]:
    if "-m" not in words[:-1]:
        return []
    name = words[words.index("-m") + 1]
    return [*_files_of(name, [Path.cwd(), *roots]), *_files_of(f"{name}.__main__", [Path.cwd(), *roots])]


def _imported(path: Path, content: bytes, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):  # a notebook, or invalid Python: only the file itself is included
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _files_of(each.name, roots)
        elif isinstance(node, ast.ImportFrom):
            where = roots
            if node.level:
                folder = path.parent
                for _ in range(node.level - 1):
                    folder = folder.parent
                where = [folder]
            names = [node.module] if node.module else []
            names += [f"{node.module}.{each.name}" if node.module else each.name for each in node.names]
            for name in names:
                yield from _files_of(name, where)


def _files_of(name: str, roots: Sequence[Path]) -> list[Path]:
    parts = name.split(".")
    for root in [*roots, *_home_of(parts[0])]:
        found = []
        for count in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:count])
            found += [each for each in (place / "__init__.py", place.with_name(f"{place.name}.py")) if _is_file(each)]
        if found:
            return found
    return []


# For packages that are installed in editable mode.
def _home_of(name: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(name) if name not in sys.stdlib_module_names else None
    except (ImportError, ValueError, AttributeError):
        return []
    origin = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if origin is None or not _is_file(origin) or _is_installed(origin):
        return []
    return [origin.parent.parent if origin.name == "__init__.py" else origin.parent]


def _below(folder: Path) -> Iterator[Path]:
    for count, path in enumerate(sorted(folder.rglob("*.py"))):
        if count > _MOST_FILES:
            return
        if not _is_installed(path) and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _is_installed(path: Path) -> bool:
    return bool(_INSTALLED & set(path.parts))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # an argument that is too long for a file name
        return False


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, most_bytes=_MOST_BYTES)
    except OSError:
        return None
