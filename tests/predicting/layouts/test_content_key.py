"""Two runs have one key where all is the same that decides, and different ones where anything is not."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.predicting.layouts.content_key import ContentKeys, counting_variables, versions
from ullage.predicting.layouts.sources import sources_of
from ullage.predicting.prediction.request import Request


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "model.py").write_text("from . import parts\nfrom .inner.deep import x\n")
    (tmp_path / "package" / "parts.py").write_text("import torch, os\n")
    (tmp_path / "package" / "inner" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner" / "deep.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "config.toml").write_text("[model]\n")
    path = tmp_path / "train.py"
    path.write_text("import os\nfrom package.model import Model\nsize = os.environ['MODEL_SIZE']\n")
    return path


def names(found: dict[str, bytes], folder: Path) -> set[str]:
    return {str(Path(path).relative_to(folder)) for path in found}


def test_what_a_script_imports_of_the_users_own_is_found(script: Path) -> None:
    expected = {"train.py", "config.toml"} | {
        f"package/{name}.py" for name in ("__init__", "model", "parts", "inner/__init__", "inner/deep")
    }
    found = sources_of((str(script), "--config=config.toml", "--steps", "3", "-x", "x" * 5000))
    assert names(found, script.parent) == expected


def test_a_module_that_is_run_by_name_is_found(script: Path) -> None:
    found = sources_of(("torchrun", "-m", "package.model"))
    assert "package/inner/deep.py" in names(found, script.parent)


def test_where_a_text_imports_by_name_everything_below_counts(script: Path) -> None:
    script.write_text("import importlib\nimportlib.import_module(name)\n")
    assert "other.py" in names(sources_of((str(script),)), script.parent)


def test_no_python_is_no_error(script: Path) -> None:
    script.write_text("this is (no python")
    assert names(sources_of((str(script),)), script.parent) == {"train.py"}


def request_of(script: Path, **changes: object) -> Request:
    made = {name: changes.pop(name) for name in ("arguments", "environment") if name in changes}
    request = Request.of(script, ("--config", "config.toml"), **{"gpu": "H100", **changes})  # type: ignore[arg-type]
    return replace(request, **made)  # type: ignore[arg-type]


def test_the_same_has_the_same_key(script: Path) -> None:
    first, second = request_of(script), request_of(script, output=True, seconds=10.0)
    assert ContentKeys(first).key_of(first) == ContentKeys(second).key_of(second)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "A100"},
        {"arguments": ("--config", "config.toml", "--dp", "2")},
        {"rank": 1},
        {"steps": 2},
        {"environment": {"TP": "2"}},
        {"total_memory": 1 << 30},
    ],
)
def test_another_request_has_another_key(script: Path, changes: dict[str, object]) -> None:
    keys = ContentKeys(request_of(script))
    assert keys.key_of(request_of(script)) != keys.key_of(request_of(script, **changes))


@pytest.mark.parametrize("changed", ["train.py", "package/inner/deep.py", "config.toml"])
def test_a_changed_file_changes_the_key(script: Path, changed: str) -> None:
    request = request_of(script)
    before = ContentKeys(request).key_of(request)
    with (script.parent / changed).open("a") as file:
        file.write("# changed\n")
    assert ContentKeys(request).key_of(request) != before


def test_a_file_that_does_not_count_changes_nothing(script: Path) -> None:
    request = request_of(script)
    before = ContentKeys(request).key_of(request)
    (script.parent / "other.py").write_text("changed")
    assert ContentKeys(request).key_of(request) == before


def test_variables_count_that_libraries_or_the_script_read(script: Path) -> None:
    given = {"MODEL_SIZE": "7b", "PYTORCH_ALLOC_CONF": "x", "TERM": "xterm", "PYTHONPATH": "/x", "ULLAGE_RUN": "token"}
    assert counting_variables(given, sources_of((str(script),))) == {
        "MODEL_SIZE": "7b",
        "PYTORCH_ALLOC_CONF": "x",
        "PYTHONPATH": "/x",
    }


def test_what_a_package_keeps_inside_of_itself_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, once imported, adds a folder of its own to the path: what it has run would be unknown to a local search."""
    before = versions()["packages"]
    inside = tmp_path / "ray" / "thirdparty_files"
    for folder in (inside, tmp_path):
        (folder / "made_up-1.0.dist-info").mkdir(parents=True)
        (folder / "made_up-1.0.dist-info" / "METADATA").write_text("Name: made-up\nVersion: 1.0\n")
    (tmp_path / "ray" / "__init__.py").touch()

    def found_with(folder: Path) -> str:
        monkeypatch.setattr("sys.path", [str(folder), *sys.path])
        versions.cache_clear()
        return versions()["packages"]

    try:
        beside = found_with(tmp_path)
        assert beside != before
        assert found_with(inside) == beside
    finally:
        monkeypatch.undo()
        versions.cache_clear()
