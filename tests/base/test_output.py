"""Files that are asked for: what cannot be one is refused before the work that would fill it."""

import re
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.base.output import check_output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/page.html", "the folder of html={} does not exist; create it first"),
        ("folder", "html={} is a folder; expected the name of a file to write"),
        ("link", "html={} is a link or a device; expected the name of a file to write"),
        ("train.py", "html={} would replace {}, which is an input; expected another name"),
    ],
)
def test_what_cannot_be_written_is_refused(name: str, said: str, tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / name
    script.touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=re.escape(said.format(path, script))):
        check_output("html", path, inputs=(script,))


def test_what_is_there_may_be_written_again(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    check_output("html", page, inputs=(tmp_path / "train.py",))
    assert page.read_text() == "old"
