"""The architecture as it is written down: documents, the linter's contract and the code say the same."""

import ast
import itertools
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/ullage"
DESIGN = (ROOT / "docs/design.md").read_text()
LONGEST_FUNCTION_LINES = 59


def contract() -> list[set[str]]:
    """The layers of pyproject.toml, from the lowest to the highest."""
    [layers] = [
        one["layers"]
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if one["type"] == "layers"
    ]
    return [{name.removeprefix("ullage.") for name in layer.split(" | ")} for layer in reversed(layers)]


def test_the_document_has_the_layers_of_the_contract() -> None:
    _, block, *_ = DESIGN.split("```")
    rows = [line for line in block.splitlines() if line]
    written = [set(re.split(r" {2,}", re.split(r" {3,}", row)[0].strip())) for row in rows]
    assert written == contract()


def test_every_module_is_of_a_layer() -> None:
    there = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert there - {"__pycache__", "__init__", "__main__"} == set().union(*contract())


def test_c_code_includes_only_what_lies_below() -> None:
    """The import linter does not see `#include`: of another package only a lower one's headers are taken."""
    height = {name: number for number, names in enumerate(contract()) for name in names}
    found = 0
    for source in [path for ending in ("c", "h", "cpp", "hpp") for path in PACKAGE.rglob(f"*.{ending}")]:
        for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
            included = (source.parent / name).resolve()
            if not included.exists():
                continue  # found on the include path: of the same library
            own, other = source.relative_to(PACKAGE).parts[0], included.relative_to(PACKAGE).parts[0]
            assert own == other or height[other] < height[own], f"{source}: {name}"
            found += own != other
    assert found > 5, "the search finds nothing"


def test_the_document_names_every_file() -> None:
    listed = DESIGN[DESIGN.index("## Every file") :]
    words = set(re.findall(r"[\w./*]+", listed))
    stems = {word.removesuffix(".py") for word in words}
    missing = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.stem not in stems
        and not path.stem.startswith("__")
        and path.parent != PACKAGE / "cli"  # one for each subcommand
    ]
    assert not missing


def places() -> list[tuple[str, list[str], list[str]]]:
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| (`[^|]+) \|$", (ROOT / "docs/where.md").read_text(), re.MULTILINE)
    assert len(rows) >= 20
    return [(what, re.findall("`([^`]+)`", files), re.findall("`([^`]+)`", names)) for what, files, names in rows]


def test_every_package_is_opened_for_something() -> None:
    """Who has an idea finds the package: a new one has a row of its own."""
    opened = {str(Path(file).parent).removesuffix("/_core") for _, files, _ in places() for file in files}
    there = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert len(there) > 40, "the search finds nothing"
    assert not there - opened - {"."}


@pytest.mark.parametrize(("what", "files", "names"), places())
def test_what_is_to_be_changed_is_where_the_page_says(what: str, files: list[str], names: list[str]) -> None:
    texts = [(PACKAGE / file).read_text() for file in files]
    for name in names:
        assert any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts), f"{name}, to change {what}"


def lines_of(node: ast.AST) -> int:
    """The lines of a function's body, its docstring aside: a public one has and tells of many options."""
    first = node.body[0]
    docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return node.end_lineno - first.lineno + 1 - (first.end_lineno - first.lineno + 1 if docstring else 0)


def test_no_function_is_long() -> None:
    lines = {
        f"{path.relative_to(PACKAGE)} {node.name}": lines_of(node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lines) > 1500, "the search finds nothing"
    assert not {name for name, count in lines.items() if count > LONGEST_FUNCTION_LINES}


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_a_class_has_a_name_of_its_own() -> None:
    """Who reads a name in an error, a log or an import knows which class is meant; a leading underscore is no name."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 300, "the search finds nothing"
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_what_is_said_of_an_attribute_can_be_read_alone() -> None:
    """A tooltip and docs/api.md show the text beside the name: "Of the process." would say nothing there."""
    texts = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            body = getattr(node, "body", None)
            for each, following in itertools.pairwise(body if isinstance(body, list) else []):
                match each, following:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                        texts[f"{path.relative_to(PACKAGE)}:{following.lineno}"] = text
    assert len(texts) > 500, "the search finds nothing"
    headless = re.compile(r"(As|By|For|From|How|If|In|Of|On|Per|Than|That|To|Until|What|When|Where|Which|Whose|With)\b")
    assert not {place: text for place, text in texts.items() if headless.match(text)}
