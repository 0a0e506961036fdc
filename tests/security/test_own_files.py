"""What is made and removed on a disk: new, for its owner, by descriptor, whatever others do beside it."""

import ast
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from tests.security.users import NOBODY, as_nobody, content_of
from ullage.base.errors import UllageError
from ullage.base.own_files import (
    OwnFolder,
    SharedFolderError,
    begin_file,
    new_file,
    whole_file_by_name,
    write_whole,
)
from ullage.running.run_files.live import LiveWriter, is_live

PACKAGE = Path(__file__).resolve().parents[2] / "src/ullage"
NAMES = ("process-1.live", "environment.json", "report.html")


# ---- what is made


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A user who has taken no right away from anybody: what is private is so because of us."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "ullage-runs"
    path.mkdir(mode=0o755)
    return path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_what_is_made_is_for_its_owner(tmp_path: Path) -> None:
    with OwnFolder.make_unique(tmp_path / "above" / "runs", "train") as folder:
        LiveWriter(folder.path / "process-1.live", inode=folder.inode)
        with folder.make_folder("oom-1-1") as evidence:
            evidence.write_whole("environment.json", b"{}")
    made = list(tmp_path.rglob("*"))
    assert {_mode(path) for path in made if path.is_dir()} == {0o700}
    assert {_mode(path) for path in made if path.is_file()} == {0o600}
    assert len(made) == 6


def test_what_the_user_has_named_is_as_of_any_program(tmp_path: Path) -> None:
    os.umask(0o027)
    write_whole(tmp_path / "page.html", b"x")
    os.close(new_file(tmp_path / "samples.csv"))
    assert _mode(tmp_path / "page.html") == _mode(tmp_path / "samples.csv") == 0o640


def test_two_runs_of_one_second_and_one_number_have_folders_of_their_own(home: Path) -> None:
    """As in two containers that share a folder: the same clock, and both are process 7."""
    names = {OwnFolder.make_unique(home, "train").path.name for _ in range(20)}
    assert len(names) == 20
    assert len(list(home.iterdir())) == 20


def test_a_name_that_is_taken_is_left_alone(home: Path) -> None:
    """Two containers within one run: their processes have the same numbers."""
    with OwnFolder.make_unique(home, "train") as folder:
        paths = {LiveWriter(folder.path / "rank0-7.live").path for _ in range(3)}
        assert len(paths) == 3
        assert len({folder.make_folder("oom-7-1").path for _ in range(3)}) == 3


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o1757, 0o700])
def test_a_folder_that_is_safe_is_taken(home: Path, mode: int) -> None:
    home.chmod(mode)
    OwnFolder.make_unique(home, "train")


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_others_can_write_to_is_refused(home: Path, mode: int) -> None:
    home.chmod(mode)
    with pytest.raises(SharedFolderError, match=r"other users can write to .* \(mode 7.7, no sticky bit\)") as said:
        OwnFolder.make_unique(home, "train")
    assert said.value.exit_code == 2
    assert "\n" not in str(said.value)
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another group")
def test_a_group_counts_unless_it_has_one_member(home: Path) -> None:
    """Many systems give each user a group of the same name, and new folders are for it to write."""
    home.chmod(0o775)
    OwnFolder.make_unique(home, "train")
    os.chown(home, -1, NOBODY)
    with pytest.raises(SharedFolderError):
        OwnFolder.make_unique(home, "train")


def test_a_missing_folder_is_made_wherever_one_stands(tmp_path: Path) -> None:
    """`ullage-runs` is made for its owner alone, so that it may be made in a folder that is for all."""
    tmp_path.chmod(0o777)
    with OwnFolder.make_unique(tmp_path / "ullage-runs", "train") as folder:
        assert _mode(folder.path.parent) == 0o700
    with pytest.raises(SharedFolderError):
        OwnFolder.make(tmp_path / "out")


# ---- what is removed


def _begin(home: Path) -> OwnFolder:
    folder = OwnFolder.make_unique(home, "train")
    LiveWriter(folder.path / "process-1.live", inode=folder.inode)
    return folder


def test_what_was_made_is_removed_and_the_folder_that_was_made_for_it(tmp_path: Path) -> None:
    with _begin(tmp_path / "ullage-runs") as folder:
        folder.remove(is_live)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(home: Path) -> None:
    with _begin(home) as folder:
        folder.remove(is_live)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "pipe"])
def test_where_something_is_not_ours_all_is_left(home: Path, kind: str) -> None:
    with _begin(home) as folder:
        other = folder.path / "process-2.live"
        {
            "file": lambda: other.write_text("the user's own"),
            "folder": other.mkdir,
            "link": lambda: other.symlink_to(folder.path / "process-1.live"),
            "pipe": lambda: os.mkfifo(other),
        }[kind]()
        folder.remove(is_live)
        assert sorted(folder.names()) == ["process-1.live", "process-2.live"]


# ---- whoever may write beside it, at every moment


def _life_of_a_run(home: Path) -> None:
    """What a run that ends well makes and removes, as `ullage run` and the recorder do it."""
    with _begin(home) as folder:
        folder.remove(is_live)


def _life_with_evidence(home: Path) -> None:
    """What a run that ends by an error of memory makes."""
    with _begin(home) as folder:
        with OwnFolder.open(folder.path, inode=folder.inode) as again, again.make_folder("oom-1-1") as place:
            place.write_whole("environment.json", b"{}")
        with folder.folder("oom-1-1") as place:
            place.write_whole("report.html", b"<html>")


def _life_of_a_cache(home: Path) -> None:
    for _ in range(2):
        with suppress(FileNotFoundError), OwnFolder.open_or_make(home / "train-cache" / "below") as folder:
            folder.write_whole("environment.json", b"{}")
            folder.read_file("environment.json", most_bytes=100)


def _life_of_a_named_file(home: Path) -> None:
    write_whole(home / "train-page.html", b"x")
    os.close(new_file(home / "train-samples.csv"))
    with whole_file_by_name(home / "train-tables.sqlite") as path:
        path.write_bytes(b"x")


def _link(home: Path, precious: Path) -> None:
    """Put a link to a folder of the victim's in the place of what is there."""
    for name in os.listdir(home):
        if name.startswith(("train", ".train")):
            os.rename(home / name, home / f"taken-{os.urandom(4).hex()}")
            os.symlink(precious, home / name)


def _link_files(home: Path, precious: Path) -> None:
    """Put a folder there whose files are links to the victim's."""
    for name in os.listdir(home):
        if name.startswith(("train", ".train")):
            os.rename(home / name, home / f"taken-{os.urandom(4).hex()}")
            os.mkdir(home / name)
            os.mkdir(home / name / "oom-1-1")
            for inside in NAMES:
                os.symlink(precious / inside, home / name / inside)
                os.symlink(precious / inside, home / name / "oom-1-1" / inside)


def _link_above(home: Path, precious: Path) -> None:
    """Lay links under the names that are to be expected, and take away what has them."""
    for name in ("train-cache", "train-page.html", "train-samples.csv", "train-tables.sqlite"):
        if os.path.lexists(home / name):
            os.rename(home / name, home / f"taken-{os.urandom(4).hex()}")
        os.symlink(precious / "process-1.live" if "." in name else precious, home / name)


_STEPS = re.compile(
    "mkdir|open|l?stat|fstat|unlink|rmdir|rename|replace|listdir|scandir|dup|close|posix_fallocate|pread"
)


@contextmanager
def _before_step(number: int, act: Callable[[], None]) -> Iterator[list[str]]:
    """Act once, before the system call of that number; give the calls."""
    calls: list[str] = []

    def profile(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call" and _STEPS.fullmatch(getattr(function, "__name__", "")):
            calls.append(function.__name__)  # type: ignore[attr-defined]
            if len(calls) == number + 1:
                act()

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def _precious_in(folder: Path) -> Path:
    """A folder of the victim's that looks like a run of its own."""
    precious = folder / "precious"
    precious.mkdir(mode=0o700)
    (precious / "oom-1-1").mkdir(mode=0o700)
    LiveWriter(precious / "process-1.live")
    for name in NAMES[1:]:
        (precious / name).write_text("precious")
        (precious / "oom-1-1" / name).write_text("precious")
    return precious


@pytest.mark.parametrize("attack", [_link, _link_files, _link_above])
@pytest.mark.parametrize("life", [_life_of_a_run, _life_with_evidence, _life_of_a_cache, _life_of_a_named_file])
def test_no_file_of_the_victims_is_touched_whenever_links_are_laid(
    open_path: Path, life: Callable[[Path], None], attack: Callable[[Path, Path], None]
) -> None:
    """Before each single system call; the attacker is another user where we are root, and owns the folder of runs."""
    precious = _precious_in(open_path)
    before = content_of(precious)
    step, steps = 0, 1
    while step < steps:
        home = open_path / f"runs-{step}"
        home.mkdir(mode=0o755)
        if os.getuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        act = partial(as_nobody, partial(attack, home, precious))
        with _before_step(step, act) as calls, suppress(OSError, UllageError):
            life(home)
        assert content_of(precious) == before, f"step {step} {calls[step]}"
        step, steps = step + 1, max(steps, len(calls))
    assert steps > 15


def test_a_run_that_ends_may_take_the_common_folder_with_it(tmp_path: Path) -> None:
    """Who is the last in `ullage-runs` removes it: at any moment of another run's beginning."""
    home = tmp_path / "ullage-runs"
    step, steps = 0, 1
    while step < steps:
        home.mkdir(mode=0o700, exist_ok=True)
        with _before_step(step, partial(_remove_empty, home)) as calls:
            folder = OwnFolder.make_unique(home, "train")
        with folder:
            assert folder.is_in_place
            folder.remove(is_live)
        step, steps = step + 1, max(steps, len(calls))
    assert steps > 5


def test_two_that_make_one_folder_at_once_both_have_it(tmp_path: Path) -> None:
    """At any moment of the one's beginning the other makes it, what it lies in, and a file."""
    step, steps = 0, 1
    while step < steps:
        path = tmp_path / f"{step}" / "caches" / "91900" / "card"
        with _before_step(step, partial(_make_and_write, path)) as calls, OwnFolder.open_or_make(path) as folder:
            folder.write_whole("ours", b"x")
        with OwnFolder.open(path) as folder:
            assert {"ours", "the other's"} >= set(folder.names()) >= {"ours"}
        step, steps = step + 1, max(steps, len(calls))
    assert steps > 15


def test_two_runs_that_make_the_common_folder_at_once_both_begin(tmp_path: Path) -> None:
    step, steps = 0, 1
    while step < steps:
        home = tmp_path / f"{step}" / "ullage-runs"
        with _before_step(step, lambda home=home: _begin(home).close()) as calls, _begin(home) as folder:
            assert folder.is_in_place
        assert len(list(home.iterdir())) in (1, 2)  # the last steps are of the file, when it has begun
        step, steps = step + 1, max(steps, len(calls))
    assert steps > 15


def _make_and_write(path: Path) -> None:
    with OwnFolder.open_or_make(path) as folder:
        folder.write_whole("the other's", b"x")


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def test_what_takes_the_place_of_a_file_is_not_put_under_its_name(tmp_path: Path) -> None:
    """Somebody who takes away the unfinished file cannot have us name his own."""
    begun = begin_file(tmp_path / "page.html")
    begun.file.write(b"page")
    [part] = tmp_path.iterdir()
    part.unlink()
    part.write_text("his")
    with pytest.raises(OSError, match="another process has replaced it"):
        begun.complete()
    assert not (tmp_path / "page.html").exists()
    assert part.read_text() == "his"


def test_a_link_under_the_name_is_replaced_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("page.html", "samples.csv", "tables.sqlite"):
        (tmp_path / name).symlink_to(precious)
    write_whole(tmp_path / "page.html", b"x")
    os.close(new_file(tmp_path / "samples.csv"))
    with whole_file_by_name(tmp_path / "tables.sqlite") as path:
        path.write_bytes(b"x")
    assert precious.read_text() == "precious"
    assert not any((tmp_path / name).is_symlink() for name in ("page.html", "samples.csv", "tables.sqlite"))


# ---- nothing else does it

MODULES = {"os", "shutil", "tempfile", "socket", "sqlite3", "mmap"}
ALLOWED = {
    "base/own_files.py": "it is the one",
    "base/foreign_files.py": "opens to read alone",
    "cli/app.py": "/dev/null in place of a closed stream",
    "gpu/emulator/cudnn/planner.py": "/dev/null, and a socket that it was started with",
    "running/supervision/supervisor.py": "the terminal",
    "running/export/prometheus.py": "a port, which the user has asked for",
    "gpu/emulator/nvidia_smi/answer.py": "nvidia-smi's own option -f, and the memory of the process that started it",
    "gpu/emulator/emulate.py": "memory without a name",
    "predicting/prediction/several/draws.py": "a folder beside the snapshot that was asked for, and that snapshot",
    "running/export/database.py": "SQLite, by the name that own_files has given",
    "predicting/layouts/result_store.py": "SQLite, in a folder that own_files has checked, or where the user has named",
}
MAKING = re.compile(
    "open|mkdir|makedirs|mkfifo|mknod|unlink|remove|removedirs|rmdir|rmtree|renames?|symlink|link|truncate|chmod|chown|"
    "touch|write_text|write_bytes|symlink_to|hardlink_to|mkstemp|mkdtemp|(Named|Spooled)?TemporaryFile|"
    "TemporaryDirectory|copyfile|copy2?|copytree|move|make_archive|connect|bind|create_server"
)


def _makes(call: ast.Call) -> bool:
    """Tell whether a call makes or removes something on a disk; `open` to read does not."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
    if name == "replace":
        return len(call.args) == 1 and not call.keywords  # of a path: a text's has two
    if not MAKING.fullmatch(name):
        return False
    if name == "open" and owner != "os":
        modes = (*call.args, *(word.value for word in call.keywords if word.arg == "mode"))
        texts = [one.value for one in modes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        return any(set(text) & set("wax+") and len(text) <= 3 for text in texts)
    if name in {"remove", "copy", "move", "connect", "bind", "link", "truncate"}:
        return owner in MODULES  # lists, texts and figures have such methods, too
    return True


def test_nothing_else_in_the_package_makes_or_removes_files() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and _makes(node)]
        if calls:
            found[str(path.relative_to(PACKAGE))] = [f"{ast.unparse(call)}:{call.lineno}" for call in calls]
    assert {name: calls for name, calls in found.items() if name not in ALLOWED} == {}
    assert set(found) | {"base/foreign_files.py"} >= set(ALLOWED) - {"running/export/prometheus.py"}


READERS = {
    "api/input.py": "by `open_regular`, or standard input",
    "base/packed.py": "the only file of an archive that somebody else has opened as a regular one",
    "__init__.py": "its own stub",
    "base/foreign_files.py": "it is the one",
    "base/own_files.py": "what it has made, by descriptor",
    "base/child_process.py": "/proc of this user's processes",
    "recorded/allocator/recorded.py": "the project's own recordings, for its conformance test",
    "running/diagnosis/host.py": "/proc and /sys",
    "running/diagnosis/process.py": "/proc",
    "gpu/emulator/cudnn/planner.py": "/proc",
    "gpu/emulator/cudnn/table.py": "its own table",
    "gpu/emulator/cudnn/wheel.py": "an installed package's header",
    "gpu/emulator/profile.py": "its own profiles",
    "gpu/emulator/torch_build.py": "an installed package's version",
    "gpu/gpus.py": "its own table",
    "predicting/layouts/content_key.py": "the list of this package's files that its installer wrote",
    "predicting/prediction/ranks/processes.py": "/proc of the processes that run ranks",
    "predicting/prediction/host/watch.py": "/proc and /dev/shm of this user's processes",
    "gpu/tracing/journal/host.py": "/proc of this process",
    "report/page/html.py": "its own scripts and plotly's",
    "recorded/snapshot/file.py": "/sys/fs/cgroup",
    "running/watch/source.py": "/proc",
    "running/watch/target.py": "/proc of this user's processes",
}


def _reads(call: ast.Call) -> bool:
    """Tell whether a call reads a file by its path."""
    if isinstance(call.func, ast.Attribute):
        owner = getattr(call.func.value, "id", "")
        is_path = (
            call.func.attr == "open" and owner not in {"os", "OwnFolder", "cls"} and bool(call.args or call.keywords)
        )
        return call.func.attr in {"read_text", "read_bytes"} or is_path
    return getattr(call.func, "id", "") in {"open", "opened"}


def test_nothing_else_in_the_package_reads_files_that_others_may_have_made() -> None:
    """It would wait for a pipe."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and _reads(node)]
        if calls:
            found[str(path.relative_to(PACKAGE))] = [f"{ast.unparse(call)}:{call.lineno}" for call in calls]
    assert {name: calls for name, calls in found.items() if name not in READERS and name not in ALLOWED} == {}
    assert set(READERS) <= set(found)


def test_the_document_names_tests_that_are_there() -> None:
    root = PACKAGE.parents[1]
    names = set(
        re.findall(r"`((?:tests/|src/)?(?:\w+/)*(?:\w+\.py|fuzzing/))`", (root / "docs/security.md").read_text())
    )
    assert len(names) >= 11
    assert [
        name
        for name in names
        if not any((root / folder / name).exists() for folder in ("", "src/ullage", "tests", "tests/security"))
    ] == []
