"""Unified diffs, applied by git itself."""

import subprocess
from pathlib import Path

import pytest

from ullage.predicting.editing.diff import diff_of


@pytest.mark.parametrize("before", ["a = 1\nb = 2\n", "a = 1\nb = 2", "a = 1\r\nb = 2\r\n"])
@pytest.mark.parametrize("in_repository", [True, False])
def test_git_applies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, in_repository: bool) -> None:
    folder = tmp_path / "code with a space"
    folder.mkdir()
    if in_repository:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.chdir(tmp_path if in_repository else folder)
    script = folder / "train.py"
    script.write_bytes(before.encode())
    after = before.replace("b = 2", "c = 3\nb = 2" if "\r" not in before else "c = 3\r\nb = 2")
    (tmp_path / "advice.diff").write_bytes(diff_of({str(script): (before, after)}).encode())
    subprocess.run(["git", "apply", tmp_path / "advice.diff"], check=True)
    assert script.read_bytes() == after.encode()


def test_nothing_changed_is_no_diff() -> None:
    assert diff_of({"a.py": ("a\n", "a\n")}) == ""
