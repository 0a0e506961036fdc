"""`make wheel`: what it takes from other files, and what it refuses. That the wheels run is its own business."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project.test_docs import ROOT, module_of

wheel = module_of(ROOT / "tools" / "wheel.py")


def test_the_first_command_of_the_readme_is_what_is_tried() -> None:
    program, command, script, *_ = wheel.first_command()
    assert (program, command) == ("ullage", "predict")
    assert (ROOT / script).is_file()


def test_the_pythons_are_those_of_the_metadata() -> None:
    told = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tuple(told) == wheel.PYTHONS


def test_what_pythons_have_to_agree_on_is_all_but_the_hosts_memory() -> None:
    """The interpreter itself and what it loads is resident: no two versions take as much."""
    card, host, lines = (
        "The card\n  allocated  5.24 GiB\n",
        "Host memory at the peak\n  resident  529 MiB\n",
        "Your lines\n  a\n",
    )
    assert wheel.answer_of(f"{card}\n{host}\n{lines}") == [card.strip(), lines.strip()]


def tools_with(folder: Path, auditwheel: str) -> Path:
    """A folder of tools whose auditwheel is the given Python code."""
    path = folder / "auditwheel"
    path.write_text(f"#!{sys.executable}\nimport sys, zipfile\nfrom pathlib import Path\n{auditwheel}\n")
    path.chmod(0o755)
    return folder


def wheel_in(folder: Path) -> Path:
    path = folder / "ullage-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ullage/gpu/emulator/cuda/lib/13/libcuda.so", "as it was built")
        archive.writestr("ullage-0.1.0.dist-info/WHEEL", "Tag: linux_x86_64")
    return path


REPAIR = """
with zipfile.ZipFile(Path(sys.argv[6]) / "ullage-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl", "w") as archive:
    archive.writestr("ullage/gpu/emulator/cuda/lib/13/libcuda.so", {library!r})
    archive.writestr("ullage-0.1.0.dist-info/WHEEL", "Tag: manylinux_2_34_x86_64")
"""


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    monkeypatch.setattr(wheel, "DIST", folder)
    return folder


def test_a_wheel_is_given_its_name_and_stays_as_it_is(tmp_path: Path, dist: Path) -> None:
    tools = tools_with(tmp_path, REPAIR.format(library="as it was built"))
    found = wheel.repaired(wheel_in(tmp_path), tools, tmp_path / "log")
    assert found == dist / "ullage-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"


@pytest.mark.usefixtures("dist")
def test_a_wheel_whose_libraries_auditwheel_changed_is_refused(tmp_path: Path) -> None:
    tools = tools_with(tmp_path, REPAIR.format(library="another run path"))
    with pytest.raises(wheel.Failed, match=r"changed files of .*: ullage/gpu/emulator/cuda/lib/13/libcuda.so$"):
        wheel.repaired(wheel_in(tmp_path), tools, tmp_path / "log")


@pytest.mark.usefixtures("dist")
def test_a_wheel_that_asks_for_more_than_the_platform_has_is_refused(tmp_path: Path) -> None:
    tools = tools_with(tmp_path, "sys.exit('auditwheel: error: too-recent versioned symbols')")
    with pytest.raises(wheel.Failed, match="exit code 1: auditwheel: error: too-recent versioned symbols"):
        wheel.repaired(wheel_in(tmp_path), tools, tmp_path / "log")


def tried(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> list[str]:
    """What is told to be wrong when the first command prints these answers, by Python; "": the wheel fails."""

    def try_wheel(python: object, *_: object) -> str:
        if not answers[python.version]:
            raise wheel.Failed("it ended with exit code 4")
        return answers[python.version]

    monkeypatch.setattr(wheel, "try_wheel", try_wheel)
    pythons = [wheel.Python(version=each, path=Path(each), origin="", has_headers=True) for each in answers]
    wheels = [Path(f"ullage-0.1.0-{tag}-manylinux_2_34_x86_64.whl") for tag in ("cp311-cp311", "cp312-abi3")]
    return wheel.try_all(pythons, wheels, "2.15.0", Path("work"), Path("tools"))


def test_a_wheel_that_fails_or_answers_otherwise_or_is_not_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make wheel` ends with exit code 1 for each of them."""
    assert tried(monkeypatch, {"3.11": "FITS", "3.12": "FITS"}) == []
    assert tried(monkeypatch, {"3.11": "FITS", "3.12": ""}) == ["Python 3.12: it ended with exit code 4"]
    (other,) = tried(monkeypatch, {"3.11": "FITS", "3.12": "FITS", "3.14": "FITS, another line"})
    assert other.startswith("Python 3.14 prints another answer than 3.11")
    (missing,) = tried(monkeypatch, {"3.13": "FITS"})
    assert missing == "ullage-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl was not tried: no Python for it was found"
