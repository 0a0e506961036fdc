"""Where tests are: the tests of `src/ullage/FAMILY/PACKAGE` are in `tests/FAMILY/PACKAGE`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import tests_of  # noqa: E402  # the folder has to be in the path first

PACKAGE, TESTS = ROOT / "src" / "ullage", ROOT / "tests"
OF_SOME_SIZE_LINES = 100
ACROSS_PACKAGES = {
    "compiler_later": "most processes of the tests import torch's compiler where it is used: a second less",
    "forked": "the fork server by which most tests start a Python, and its own tests",
    "fuzzing": "random inputs for everything that reads files of others",
    "golden": "what is shown on a terminal, compared as a whole",
    "our_gpus": "benchmarks/our_gpus: what is measured on GPUs",
    "project": "documents, packaging, types, layers, and the suite itself",
    "real_cards": "benchmarks/real_cards: what others measured",
    "security": "what is promised in docs/security.md",
    "shared": "what tests of several packages use: fixtures, ways to start a process, scripts",
    "snapshots": "recorded runs that tests of several packages and the documents read",
    "truth": "predictions of recorded workloads, compared to the byte",
}
"""Folders whose subject is no package."""


def python_lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py"))


def packages() -> list[str]:
    """Families with modules of their own, and the packages in families."""
    folders = [path for depth in ("*", "*/*") for path in PACKAGE.glob(depth) if (path / "__init__.py").exists()]
    found = [str(path.relative_to(PACKAGE)) for path in folders if python_lines(path) >= OF_SOME_SIZE_LINES]
    assert len(found) > 30, "the search finds nothing"
    return sorted(found)


def folders() -> list[str]:
    """Each folder with tests, and whatever else is a folder of `tests` itself."""
    with_tests = {path.parent for path in TESTS.rglob("test_*.py")}
    themselves = {path for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    return sorted(str(path.relative_to(TESTS)) for path in with_tests | themselves)


@pytest.mark.parametrize("package", packages())
def test_a_package_has_its_tests_in_the_folder_of_the_same_name(package: str) -> None:
    assert any((TESTS / package).glob("test_*.py"))


@pytest.mark.parametrize("folder", folders())
def test_a_folder_has_the_name_of_a_package_or_of_a_subject_across_packages(folder: str) -> None:
    assert (PACKAGE / folder).is_dir() or folder in ACROSS_PACKAGES


def test_the_lists_name_what_is_there() -> None:
    assert set(ACROSS_PACKAGES) <= set(folders())
    assert all((ROOT / place).exists() for place in tests_of.ELSEWHERE.values())


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("src/ullage/base/units.py", {"tests/base/test_units.py"}),
        ("src/ullage/gpu/emulator/cuda/card.c", {"tests/gpu/emulator/test_card.py"}),
        ("src/ullage/gpu/emulator/cudnn/tree.py", {"tests/gpu/emulator/cudnn/test_tree.py"}),
        ("src/ullage/predicting/prediction/measurement/trace.py", {"tests/predicting/prediction/test_trace.py"}),
        ("src/ullage/recorded/history.py", {"tests/explaining/analysis/test_blocks.py"}),
        ("src/ullage/report/terminal.py", {"tests/golden/test_report.py"}),
        ("src/ullage/report/page/slim.py", {"tests/report/page/test_page.py"}),
        ("tests/base/test_units.py", {"tests/base/test_units.py"}),
        ("tests/base/test_removed.py", set()),
        ("tests/shared/fresh.py", {"tests/gpu/emulator/test_torch.py"}),
        ("benchmarks/our_gpus/plan.py", {"tests/our_gpus/test_compare.py"}),
        ("docs/guard.md", {"tests/project/test_docs.py"}),
        ("LICENSE", set()),
    ],
)
def test_the_tests_of_a_changed_file(file: str, expected: set[str]) -> None:
    found = {str(path.relative_to(ROOT)) for path in tests_of.tests_of(file)}
    assert found >= expected
    assert bool(found) == bool(expected)
    assert len(found) < 40, "most of the suite"
