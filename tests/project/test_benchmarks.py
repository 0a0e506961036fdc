"""The benchmarks, which only `make bench` and its like run, import what the package has.

Sources are read and not imported: some modules need torch.
"""

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
PACKAGE = Path(importlib.util.find_spec("ullage").origin or "").parent  # type: ignore[union-attr]
SCRIPTS = [path for path in FOLDER.rglob("*.py") if not {"drivers", "scripts"} & set(path.parts)]


@cache
def names_of(module: str) -> frozenset[str]:
    """What a module of the package defines or imports, and the modules in it; nothing where it is no Python source."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not source.is_file():
        return frozenset()
    found = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                found.update(alias.asname or alias.name for alias in names)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Constant(value=str(name)):  # names that are given when they are asked for
                found.add(name)
    return frozenset(found)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_a_benchmark_imports_of_the_package_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("ullage."):
            there = names_of(node.module)
            missing = [alias.name for alias in node.names if there and alias.name not in there]
            assert not missing, f"{node.module} has no {missing}"
