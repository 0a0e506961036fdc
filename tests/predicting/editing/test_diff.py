"""The diff of an advice: git applies it where the user stands, or a sentence refuses it."""

import shlex
import subprocess
from pathlib import Path

import pytest

from ullage.predicting.editing.diff import command_to_apply, diff_of, outside_of_root, root_of_patch

BEFORE = "a = 1\nb = 2\n"


def changed(before: str) -> str:
    end = "\r\n" if "\r" in before else "\n"
    return before.replace("b = 2", f"c = 3{end}b = 2")


def applied(script: Path, patch: Path, before: str = BEFORE, name: Path | None = None) -> None:
    """Have git apply a diff with the command that is shown, in the current folder."""
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_bytes(before.encode())
    root = root_of_patch([str(name or script)])
    diff = diff_of({str(name or script): (before, changed(before))}, root)
    assert outside_of_root(diff) == ""
    patch.write_bytes(diff.encode())
    subprocess.run(shlex.split(command_to_apply(patch, root)), check=True)
    assert script.read_bytes() == changed(before).encode()


@pytest.mark.parametrize(
    "before",
    [BEFORE, BEFORE.rstrip(), BEFORE.replace("\n", "\r\n"), f"# a page\n\f\n{BEFORE}", f"x = '\u2028 \x1c'\n{BEFORE}"],
)
@pytest.mark.parametrize("in_repository", [True, False])
def test_every_form_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, in_repository: bool
) -> None:
    folder = tmp_path / "code with a space"
    folder.mkdir()
    if in_repository:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.chdir(tmp_path if in_repository else folder)
    applied(folder / "train.py", tmp_path / "advice.diff", before)


@pytest.mark.parametrize(
    "name", ["with space.py", "\u00fc.py", 'quo"te.py', "back\\slash.py", "tab\t.py", "new\nline.py", "-x.py"]
)
def test_every_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    applied(tmp_path / name, tmp_path / "advice.diff")


def test_every_place_of_a_script_and_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through links, in a submodule, from a subfolder, and from outside of the repository."""
    top, patch = tmp_path / "top", tmp_path / "advice.diff"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "other").mkdir()
    subprocess.run(["git", "init", "-q", top], check=True)
    subprocess.run(["git", "init", "-q", top / "sub"], check=True)
    (top / "link.py").symlink_to("other/train.py")
    (top / "linked").symlink_to("other")
    (tmp_path / "to_top").symlink_to("top")
    monkeypatch.chdir(top)
    applied(top / "other" / "train.py", patch, name=Path("link.py"))
    applied(top / "other" / "train.py", patch, name=Path("linked/train.py"))
    applied(top / "sub" / "deep" / "train.py", patch)
    monkeypatch.chdir(tmp_path / "to_top")
    applied(top / "other" / "train.py", patch)
    monkeypatch.chdir(top / "sub")
    applied(top / "sub" / "train.py", patch, name=Path("train.py"))
    monkeypatch.chdir(top / "other")
    applied(top / "train.py", patch, name=Path("../train.py"))
    monkeypatch.chdir(tmp_path)
    applied(top / "sub" / "train.py", patch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    applied(top / "other" / "train.py", patch, name=Path("../top/link.py"))
    applied(tmp_path / "plain" / "train.py", patch)
    (tmp_path / "elsewhere" / "link.py").symlink_to("../plain/train.py")
    applied(tmp_path / "plain" / "train.py", patch, name=Path("link.py"))


def test_a_file_outside_of_the_root_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files in two repositories, git changes only one."""
    for name in ("one", "two"):
        subprocess.run(["git", "init", "-q", tmp_path / name], check=True)
        (tmp_path / name / "train.py").write_text(BEFORE)
    monkeypatch.chdir(tmp_path / "one")
    files = ["train.py", "../two/train.py"]
    root = root_of_patch(files)
    assert root == (tmp_path / "one").resolve()
    assert outside_of_root(diff_of({file: (BEFORE, changed(BEFORE)) for file in files}, root)) == "../two/train.py"


def test_nothing_changed_is_not_a_diff() -> None:
    assert diff_of({"a.py": ("a\n", "a\n")}, Path()) == ""
