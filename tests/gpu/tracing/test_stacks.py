"""The stacks that the journal reads by itself are those that Python tells, whatever runs."""

import ctypes
import gc
import json
import sys
import threading
from pathlib import Path

import pytest

from ullage.gpu.tracing import journal
from ullage.gpu.tracing.journal.stacks import _LAYOUTS, JournalStacks
from ullage.gpu.tracing.source import Line, is_librarys, is_users

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the journal is built on Linux")


@pytest.fixture
def library() -> ctypes.CDLL:
    return journal.library()


@pytest.fixture
def stacks(library: ctypes.CDLL) -> JournalStacks:
    stacks = JournalStacks(library)
    assert stacks.are_recorded
    return stacks


def by_python(skip: int) -> list[Line]:
    lines, frame = [], sys._getframe(skip)
    while frame is not None:
        lines.append(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return lines


def test_the_table_knows_this_interpreter() -> None:
    assert sys.version_info[:2] in _LAYOUTS


def test_a_stack_is_what_python_tells(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    node, expected = library.stacks_here(), by_python(1)
    assert stacks.stack(node) == expected


def test_a_comprehension_a_generator_a_lambda_and_recursion(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    def look() -> tuple[int, list[Line]]:
        return library.stacks_here(), by_python(1)

    def generate():
        yield look()
        yield from (look() for _ in range(2))

    def recurse(depth: int) -> tuple[int, list[Line]]:
        return recurse(depth - 1) if depth else look()

    seen = [look() for _ in range(2)]
    seen += list(generate())
    seen += [(lambda: look())(), recurse(5), *map(lambda _: look(), range(2))]  # noqa: C417
    seen += [sorted([1], key=lambda _: seen.append(look()) or 0) and seen[-1]]
    for node, expected in seen:
        assert stacks.stack(node) == expected


def test_an_object_that_is_made_often(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    """From Python 3.13 on the interpreter then has a frame of its own between `__init__` and who calls it."""

    class Looking:
        def __init__(self) -> None:
            self.seen = library.stacks_here(), by_python(1)

    for _ in range(60):
        node, expected = Looking().seen
    assert stacks.stack(node) == expected


def test_only_the_innermost_frames_of_a_very_deep_stack_are_kept(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    def recurse(depth: int) -> tuple[int, list[Line]]:
        return recurse(depth - 1) if depth else (library.stacks_here(), by_python(1))

    node, expected = recurse(400)
    assert stacks.stack(node) == expected[:200]


def test_names_that_are_not_ascii(library: ctypes.CDLL, stacks: JournalStacks, tmp_path: Path) -> None:
    file = str(tmp_path / "日本 \U0001f600 é.py")
    names: dict = {}
    exec(compile("\n\ndef größe(library):\n\n    return library.stacks_here()\n", file, "exec"), names)
    assert stacks.stack(names["größe"](library))[0] == Line(file, 5, "größe")


def test_code_that_takes_the_place_of_dead_code_is_not_taken_for_it(
    library: ctypes.CDLL, stacks: JournalStacks
) -> None:
    for number in range(300):
        names: dict = {}
        text = "\n" * (number % 7) + f"def f{number % 11}(library): return library.stacks_here()\n"
        exec(compile(text, f"/made/{number % 13}.py", "exec"), names)
        expected = Line(f"/made/{number % 13}.py", number % 7 + 1, f"f{number % 11}")
        assert stacks.stack(names[f"f{number % 11}"](library))[0] == expected
        del names


def test_the_same_stack_is_the_same_number(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    assert len({library.stacks_here() for _ in range(100)}) == 1


def test_threads_have_stacks_of_their_own(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    wrong: list[object] = []

    def look() -> None:
        for _ in range(2000):
            node, expected = library.stacks_here(), by_python(1)
            if stacks.stack(node) != expected:
                wrong.append((stacks.stack(node), expected))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_looking_makes_no_object_that_python_would_collect(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    stacks_here = library.stacks_here
    before = gc.get_count()[0]
    for _ in range(500):
        stacks_here()
    assert gc.get_count()[0] - before < 50


def test_the_users_line_is_the_innermost_outside_of_libraries(library: ctypes.CDLL, stacks: JournalStacks) -> None:
    found = []
    sorted([2, 1], key=lambda value: found.append(library.stacks_here()) or value)
    line = stacks.users_line(found[0])
    assert line is not None
    assert line.file == __file__
    assert stacks.users_line(0) is None


def test_a_table_that_is_wrong_is_found_out(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _LAYOUTS[sys.version_info[:2]]
    wrong = type(right).from_buffer_copy(right)
    wrong.code_qualname = wrong.code_filename
    monkeypatch.setitem(_LAYOUTS, sys.version_info[:2], wrong)
    assert not JournalStacks(library).are_recorded
    assert library.stacks_here() == 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/user/project/train.py", True),
        ("/home/user/other/lib/python3.11/site-packages/triton/compiler.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        (json.__file__, False),
        ("<string>", False),
    ],
)
def test_a_package_of_any_environment_is_not_the_users(file: str, expected: bool) -> None:
    """An environment may stand on another's packages (PYTHONPATH, a .pth file): these are libraries as well."""
    assert is_users(file) == expected


def test_a_link_among_packages_is_what_it_leads_to(tmp_path: Path) -> None:
    """A module that somebody has linked to is his own, in a folder where everything else is installed."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (tmp_path / "mine.py").touch()
    (packages / "theirs.py").touch()
    (packages / "linked.py").symlink_to(tmp_path / "mine.py")
    found = [is_users(str(packages / name)) for name in ("theirs.py", "linked.py", "made_later.py")]
    assert found == [False, True, False]


def test_what_pip_has_put_into_a_folder_of_pythonpath_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target .` fills the user's own folder, too, which the user's modules stay in."""
    record = '../../bin/tune,,\ntune/cli.py,sha256=x,10\n"od,d.py",,\nsingle.py,,\ntune-1.dist-info/RECORD,,\n'
    (tmp_path / "tune-1.dist-info").mkdir()
    (tmp_path / "tune-1.dist-info" / "RECORD").write_text(record)
    files = [str(tmp_path / name) for name in ("tune/cli.py", "single.py", "od,d.py", "train.py", "bin/mine.py")]
    assert [is_users(file) for file in files[1:3]] == [True, True]  # not on the path
    monkeypatch.syspath_prepend(str(tmp_path))
    is_users.cache_clear()
    assert [is_users(file) for file in files] == [False, False, False, True, True]
    assert [is_librarys(file) for file in files] == [True, True, True, False, False]
