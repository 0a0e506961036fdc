"""The architecture as it is written down: documents, the linter's contract and the code say the same."""

import ast
import itertools
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import every_file  # noqa: E402  # the folder has to be in the path first

PACKAGE = ROOT / "src/ullage"
DESIGN = (ROOT / "docs/design.md").read_text()
LONGEST_FUNCTION_LINES = 59


def contracts() -> dict[str, list[set[str]]]:
    """The layers of pyproject.toml, from the lowest to the highest: of the families ("") and within each of them."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = {}
    for one in tables:
        if one["type"] == "layers":
            name = one.get("containers", ["ullage"])[0].removeprefix("ullage").removeprefix(".")
            found[name] = [
                {part.removeprefix("ullage.") for part in layer.split(" | ")} for layer in reversed(one["layers"])
            ]
    return found


def modules_in(folder: Path) -> set[str]:
    there = {path.stem if path.is_file() else path.name for path in folder.iterdir() if path.suffix in ("", ".py")}
    return there - {"__pycache__", "__init__", "__main__"}


def test_the_document_has_the_families_of_the_contract() -> None:
    """From the lowest to the highest; those of one layer may stand in any order."""
    block = DESIGN.split("```")[1]
    written = [re.split(r" {3,}|(?<=_child)  ", row)[0].split() for row in block.splitlines() if row]
    names = [name for row in written for name in row]
    order = {name: number for number, layer in enumerate(contracts()[""]) for name in layer}
    assert names == sorted(names, key=lambda name: (order[name], names.index(name)))
    assert set(names) == set(order)


def test_the_document_has_the_layers_within_each_family() -> None:
    """As "lower < higher"; `base` names some of its files."""
    block = DESIGN.split("```")[3]
    rows = dict(row.split(maxsplit=1) for row in block.splitlines() if row)
    within = {name: layers for name, layers in contracts().items() if name}
    assert rows.keys() == within.keys()
    for family, row in rows.items():
        written = [set(layer.split()) for layer in row.split(" < ")]
        if family == "base":
            assert all(names - {"..."} <= layer for names, layer in zip(written, within[family], strict=True))
        else:
            assert written == within[family]


def test_every_module_is_of_a_layer() -> None:
    """Every entry of the package is a family of the contract, and every entry of a layered family is in its own."""
    for family, layers in contracts().items():
        assert modules_in(PACKAGE / family.replace(".", "/")) == set().union(*layers), family


def test_c_code_includes_only_what_lies_below() -> None:
    """The import linter does not see `#include`: of another package only a lower one's headers are taken."""
    all_layers = contracts()

    def height(path: Path) -> tuple[int, int]:
        family, module = path.relative_to(PACKAGE).parts[:2]
        return tuple(
            next(number for number, layer in enumerate(all_layers[where]) if name in layer)
            for where, name in (("", family), (family, module))
        )

    found = 0
    for source in [path for ending in ("c", "h", "cpp", "hpp") for path in PACKAGE.rglob(f"*.{ending}")]:
        for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
            included = (source.parent / name).resolve()
            if not included.exists():
                continue  # found on the include path: of the same library
            own, other = (path.relative_to(PACKAGE).parts[:2] for path in (source, included))
            assert own == other or height(included) < height(source), f"{source}: {name}"
            found += own != other
    assert found > 5, "the search finds nothing"


def test_the_document_lists_every_file() -> None:
    """`python tools/every_file.py` was run after the last file was added or its description changed."""
    assert every_file.written(DESIGN) == DESIGN


def test_every_file_says_what_it_is() -> None:
    """Every file has a first sentence, because the list consists of these."""
    paths = [path for ending in ("py", "c", "h", "cpp", "hpp") for path in PACKAGE.rglob(f"*.{ending}")]
    assert len(paths) > 500, "the search finds nothing"
    silent = [str(path.relative_to(PACKAGE)) for path in paths if not every_file.described(path)]
    assert not [name for name in silent if "symbols/" not in name]


def places() -> list[tuple[str, list[str], list[str]]]:
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| (`[^|]+) \|$", (ROOT / "docs/where.md").read_text(), re.MULTILINE)
    assert len(rows) >= 20
    return [(what, re.findall("`([^`]+)`", files), re.findall("`([^`]+)`", names)) for what, files, names in rows]


def test_every_package_is_opened_for_something() -> None:
    """Who has an idea finds the package: a new one has a row of its own."""
    opened = {str(Path(file).parent).removesuffix("/_core") for _, files, _ in places() for file in files}
    there = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
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
