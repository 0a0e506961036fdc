"""The package as it is installed: one version everywhere, its types, and what is not to be in it."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.resources import files
from pathlib import Path

import pytest

import ullage
from ullage.cli.app import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_the_same_wherever_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"ullage {ullage.__version__}\n"
    assert importlib.metadata.version("ullage") == ullage.__version__


def test_the_version_stands_in_one_place() -> None:
    """The build reads `__init__.py`; a second figure would be forgotten at a release."""
    names = [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt", *sorted((ROOT / "src").rglob("*.py"))]
    telling = [path for path in names if re.search(rf"['\"]{re.escape(ullage.__version__)}['\"]", path.read_text())]
    assert telling == [ROOT / "src" / "ullage" / "__init__.py"]


def test_the_changelog_has_a_part_for_what_is_not_released() -> None:
    """Keep a Changelog's form: newest first, with dates; the first part is the one that changes are written to."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", heading) for heading in headings[1:])


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    assert files("ullage").joinpath("py.typed").is_file()


def test_sources_in_c_are_not_installed() -> None:
    installed = importlib.metadata.files("ullage")
    assert installed
    assert not [path for path in installed if path.suffix in {".c", ".h", ".cpp", ".hpp"} or "symbols" in path.parts]


def test_an_sdist_has_what_a_build_reads_and_nothing_else(tmp_path: Path) -> None:
    """`make wheel` builds the wheels from it; here only what it holds."""
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    sources = git("ls-files", "--cached", "--others", "--exclude-standard", "src")
    rest = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert path.name == f"ullage-{ullage.__version__}.tar.gz"
    assert held == rest | {source for source in sources if (ROOT / source).exists()}


def git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone with one source, and the tool that tells when the package is to be built again."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "state.sh", tmp_path / "tools")
    (tmp_path / "src").mkdir()
    for name in ("CMakeLists.txt", "pyproject.toml", "src/one.py", "src/two words.py"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("*.so\n")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    return tmp_path


def state(tree: Path) -> str:
    done = subprocess.run([tree / "tools" / "state.sh"], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def test_a_tracked_file_that_was_deleted_is_a_change_and_no_error(tree: Path) -> None:
    before = state(tree)
    (tree / "src" / "two words.py").unlink()
    assert state(tree) != before


def test_the_package_is_built_again_when_a_source_changes_and_only_then(tree: Path) -> None:
    before = state(tree)
    (tree / "README.md").write_text("not built")
    (tree / "src" / "built.so").write_text("ignored")
    assert state(tree) == before
    (tree / "src" / "new.py").write_text("")
    assert state(tree) != before
