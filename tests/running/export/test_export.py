"""Rules of what is asked for on the command line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ullage
from ullage.base.errors import UsageError
from ullage.running.export.export import open_exports

Bare = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Run Python that has its own library and ullage, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "ullage").symlink_to(Path(ullage.__file__).parent)

    def run(code: str) -> "subprocess.CompletedProcess[str]":
        code = f"import sys; sys.path.append({str(folder)!r}); {code}"
        return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("option", "package"),
    [("parquet=Path('x.parquet'), prometheus=None", "pyarrow"), ("parquet=None, prometheus='0'", "prometheus_client")],
)
def test_a_missing_package_is_answered_with_the_install_line(bare: Bare, option: str, package: str) -> None:
    """One sentence, before anything has run."""
    ended = bare(
        "from pathlib import Path; from ullage.running.export.export import open_exports; "
        f"open_exports(csv=None, {option}, notify=print)"
    )
    last = ended.stderr.splitlines()[-1]
    assert f" needs {package}, which is not installed; install it with: pip install 'ullage[export]'" in last


def test_csv_needs_no_package(bare: Bare, tmp_path: Path) -> None:
    """Nor does a run without exports."""
    ended = bare(
        "from pathlib import Path; from ullage.running.export.export import open_exports; "
        f"folder = Path({str(tmp_path)!r}); "
        "exports = open_exports(csv=folder / 'run.csv', parquet=None, prometheus=None, notify=print); "
        "exports.update(folder); exports.finish(folder)"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (tmp_path / "run.csv").read_text().startswith("time,rank,pid,")


def test_a_file_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    """No folder, or both tables in one file; and nothing was made."""
    with pytest.raises(UsageError, match=r"^the folder of csv=.*gone/run.csv does not exist"):
        open_exports(csv=tmp_path / "gone" / "run.csv", parquet=None, prometheus=None, notify=print)
    with pytest.raises(UsageError, match=r"^parquet=.* would replace .*run.csv"):
        open_exports(csv=tmp_path / "run.csv", parquet=tmp_path / "run.csv", prometheus=None, notify=print)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_unforeseen_ends_itself_alone(tmp_path: Path) -> None:
    """It is said once; the other exports and the run go on."""
    told: list[str] = []
    exports = open_exports(
        csv=tmp_path / "one.csv", parquet=tmp_path / "two.parquet", prometheus=None, notify=told.append
    )
    table = exports._exports[0]
    table._drain = None  # type: ignore[union-attr,assignment]  # a defect of ours
    for _ in range(2):
        exports.update(tmp_path)
    exports.finish(tmp_path)
    assert len(told) == 1
    assert told[0].startswith("an export has failed (AttributeError: ")
    assert (tmp_path / "two.parquet").exists()
