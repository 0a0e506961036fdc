"""What the user's process meets where cuDNN's process, its answers on disk or the surroundings are not in order."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.fresh import answer
from ullage.gpu.emulator.cudnn.cache import default_folder
from ullage.gpu.emulator.cudnn.wheel import VARIABLE, find_cudnn, why_none

ROOT = Path(__file__).parents[4]
BEGIN = """
import ullage
ullage.emulate("A100")
import torch
from ullage.gpu.emulator import library

def convolve(channels):
    x = torch.zeros(2, channels, 16, 16, device="cuda")
    return torch.nn.functional.conv2d(x, torch.zeros(8, channels, 3, 3, device="cuda"))
"""


def test_a_planner_that_keeps_dying_leaves_the_script_alone(with_cudnn: dict[str, str]) -> None:
    """After three deaths every graph has an estimate, also one that cuDNN has planned before, in a new thread."""
    code = """
        import os, signal, sys, threading
        sys.path.insert(0, ROOT)
        from tests.gpu.emulator.cudnn.planners import planner_of
        convolve(8)
        for channels in (16, 24, 32):
            os.kill(planner_of(), signal.SIGKILL)
            convolve(channels)
            convolve(channels + 1)
        failed = []
        def again():
            try:
                convolve(8), convolve(40)
            except RuntimeError as error:
                failed.append(str(error))
        thread = threading.Thread(target=again)
        thread.start(), thread.join()
        plans = library.cudnn_plans()
        tell([failed, sorted(plans.by_source), list(plans.reasons)])
    """
    failed, sources, reasons = answer(
        BEGIN + "\n".join(line[8:] for line in code.replace("ROOT", repr(str(ROOT))).splitlines()),
        environment=with_cudnn,
    )
    assert failed == []
    assert "table" in sources
    assert "unknown" not in sources
    assert any("ended three times" in reason for reason in reasons)


CONVOLVED = (
    BEGIN
    + """
convolve(8)
told = library.cudnn_plans()
tell([{source: figures.largest_workspace_bytes for source, figures in told.by_source.items()}, list(told.reasons)])
"""
)


NONSENSE = (
    ("heuristics", "engines 4000000000"),
    ("heuristics", "engines -3"),
    ("heuristics", "engines 0"),
    ("plan", "workspace 10 10 10"),
    ("plan", "workspace -5 -5 -5 cudnn"),
    ("plan", "workspace 10 5000 6 cudnn"),
    ("plan", ""),
    ("plan", "hello"),
)


def test_an_answer_on_disk_that_nobody_can_mean_is_none(with_cudnn: dict[str, str]) -> None:
    """Nothing hangs, nothing is made room for, and what it says is not taken; its digest is right here."""
    code = (
        BEGIN
        + f"""
for channels in range(8, {8 + len(NONSENSE)}):
    convolve(channels)
tell([[found.source, found.workspace_bytes] for found in library.cudnn_problems()])
"""
    )
    before = answer(code, environment=with_cudnn)
    assert {source for source, _ in before} == {"cudnn"}
    paths = list(Path(with_cudnn["ULLAGE_CUDNN_CACHE"]).glob("*/*/*"))
    for channels, (wanted, said) in enumerate(NONSENSE, 8):
        (path, *_) = (
            path
            for path in paths
            if path.read_text().startswith(wanted) and f"902:3:2,{channels},16,16 " in path.read_text()
        )
        kept = f"{path.read_text().partition(chr(10) * 2)[0]}\n\n{said}\n"
        path.write_text(f"{kept}\n{hashlib.sha256(kept.encode()).hexdigest()}")
    after = answer(code, environment=with_cudnn)
    assert [source for source, _ in after] == ["table"] * len(NONSENSE)
    assert not {5000, 10} & {taken for _, taken in after}


@pytest.mark.parametrize("opened", ["sockets", "files"])
def test_numbers_of_files_that_the_script_closed_are_its_own(
    opened: str, with_cudnn: dict[str, str], tmp_path: Path
) -> None:
    """A script may close all and open others: nothing is written to them, none is closed, and cuDNN answers."""
    code = f"""
        import os, socket
        convolve(8)
        os.closerange(3, 4096)
        if {opened!r} == "sockets":
            pairs = [socket.socketpair() for _ in range(15)]
            for pair in pairs:
                for end in pair:
                    end.setblocking(False)
        else:
            files = [open(f"{tmp_path}/{{number}}", "w+") for number in range(30)]
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        convolve(16)
        heard = 0
        if {opened!r} == "sockets":
            for pair in pairs:
                for end in pair:
                    try:
                        heard += len(end.recv(100))
                    except BlockingIOError:
                        pass
        else:
            for file in files:
                file.write("x")
                file.flush()
                heard += os.fstat(file.fileno()).st_size - 1
        # Not `tell`: its own file was closed, too.
        os.write(1, f"heard {{heard}} {{list(library.cudnn_plans().by_source)}}\\n".encode())
        os._exit(0)
        """
    script = BEGIN + "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | with_cudnn,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.stdout == "heard 0 ['cudnn']\n", done.stderr


def test_a_handler_for_children_hears_nothing(with_cudnn: dict[str, str]) -> None:
    """The process that plans is nobody's child, and neither is what starts it."""
    heard, sources = answer(
        BEGIN
        + """
import signal
heard = []
signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
convolve(8)
tell([heard, list(library.cudnn_plans().by_source)])
""",
        environment=with_cudnn,
    )
    assert heard == []
    assert sources == ["cudnn"]


@pytest.mark.parametrize("program", ["None", "'/bin/true'", "'/tmp/py\\udcff'"])
def test_without_a_python_to_start_there_is_a_reason(program: str, with_cudnn: dict[str, str]) -> None:
    """An embedding program may name anything as its Python, or nothing."""
    code = CONVOLVED.replace("import ullage", f"import sys, ullage\nsys.executable = {program}")
    taken, reasons = answer(code, environment=with_cudnn)
    assert taken == {"unknown": 0}
    assert any("sys.executable" in reason or "could not be started" in reason for reason in reasons)


def without_compiler(cudnn: Path, folder: Path) -> Path:
    """A folder with cuDNN and without NVRTC."""
    (folder / "nvidia").mkdir(parents=True)
    (folder / "nvidia" / "cudnn").symlink_to(cudnn / "nvidia" / "cudnn")
    return folder


def test_without_its_compiler_an_estimate_takes_the_place_of_what_is_compiled(
    cudnn: Path, with_cudnn: dict[str, str], tmp_path: Path
) -> None:
    """Attention compiles its kernels: a card would run it, so the script goes on, and what is missing is named."""
    sources, reasons = answer(
        """
        import ullage
        ullage.emulate("H100")
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from ullage.gpu.emulator import library

        q = torch.empty(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            for is_causal in (False, True):
                torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=is_causal).sum().backward()
        told = library.cudnn_plans()
        tell([{source: figures.problems for source, figures in told.by_source.items()}, told.reasons])
        """,
        environment=with_cudnn | {VARIABLE: str(without_compiler(cudnn, tmp_path / "packages"))},
    )
    assert sources in ({"table": 4}, {"cudnn": 4})  # cuDNN 9.26 compiles none of these
    assert [reason for reason in reasons if "NVRTC is not installed with it; for cuDNN" in reason] == reasons
    assert bool(reasons) == ("table" in sources)


def test_a_header_of_another_version_is_not_believed(cudnn: Path, with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """Answers are kept by the version, so it has to be the library's own."""
    folder = tmp_path / "packages" / "nvidia" / "cudnn"
    (folder / "include").mkdir(parents=True)
    (folder / "lib").symlink_to(cudnn / "nvidia" / "cudnn" / "lib")
    lines = (f"#define CUDNN_{name} {number}" for name, number in (("MAJOR", 9), ("MINOR", 12), ("PATCHLEVEL", 3)))
    (folder / "include" / "cudnn_version.h").write_text("\n".join(lines))
    taken, reasons = answer(CONVOLVED, environment=with_cudnn | {VARIABLE: str(tmp_path / "packages")})
    assert list(taken) == ["table"]
    assert any("the version is 91203 in its header" in reason for reason in reasons)


def test_where_there_is_no_cudnn_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable that was set, the file that was looked for, a header that says nothing."""
    torch = tmp_path / "torch"
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr("site.getsitepackages", list)
    assert why_none(torch) == "cuDNN is not installed with torch"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert why_none(torch).startswith(
        f"{VARIABLE} is {tmp_path / 'named'}, which does not contain nvidia/cudnn/lib/libcudnn"
    )
    library = tmp_path / "named" / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    for text in (None, "", "#define CUDNN_MAJOR 9\n", *(HEADER.format(number) for number in ("9" * 17, "x"))):
        if text is not None:
            library.parents[1].joinpath("include").mkdir(exist_ok=True)
            library.parents[1].joinpath("include", "cudnn_version.h").write_text(text)
        assert find_cudnn(torch) is None
        assert why_none(torch).endswith("cudnn_version.h does not contain cuDNN's version")


HEADER = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR {}\n#define CUDNN_PATCHLEVEL 0\n"


def test_where_another_engine_may_be_taken_an_estimate_is_as_wide_as_all_engines() -> None:
    """The usual range is that of the engine that cuDNN ranks first; three settings have PyTorch take others."""
    code = (
        BEGIN.replace("A100", "T4")
        + """
def train(channels):
    x = torch.zeros(8, channels, 56, 56, device="cuda", requires_grad=True)
    torch.nn.functional.conv2d(x, torch.zeros(channels, channels, 3, 3, device="cuda")).sum().backward()

train(64)
cudnn = torch.backends.cudnn
for number, (name, value) in enumerate({"benchmark": True, "allow_tf32": False, "deterministic": True}.items(), 1):
    usual = getattr(cudnn, name)
    setattr(cudnn, name, value)
    train(64 + number)
    setattr(cudnn, name, usual)
tell([[found.source, found.low_bytes, found.workspace_bytes, found.high_bytes] for found in library.cudnn_problems()])
"""
    )
    told = answer(code, environment={VARIABLE: ""})
    for source, low, taken, high in told:
        assert source == "table"
        assert low <= taken <= high
    _, usual, *others = [high for *_, high in told]
    assert len(others) == 2 * 3
    for high in others[1::2]:
        assert high > 2 * usual


def test_a_folder_may_be_named_from_where_one_stands(tmp_path: Path, cudnn: Path) -> None:
    """The planner stands elsewhere."""
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        os.environ["ULLAGE_CUDNN_CACHE"], kept = "answers", os.environ.get("ULLAGE_CUDNN_CACHE")
        assert default_folder() == tmp_path / "answers"
        os.environ["ULLAGE_CUDNN"] = os.path.relpath(cudnn)
        found = find_cudnn(tmp_path / "torch")
        assert found is not None
        assert found.library.is_absolute()
    finally:
        os.chdir(here)
        os.environ.pop("ULLAGE_CUDNN")
        if kept is not None:
            os.environ["ULLAGE_CUDNN_CACHE"] = kept


def test_without_a_home_nothing_is_kept() -> None:
    """`ullage.emulate` needs none; a user without one is common in containers."""
    program = (
        "import os, pwd\n"
        "import ullage.gpu.emulator.cudnn.start as start\n"
        "os.setuid(54321)\n"  # nobody's
        "print(repr(start._cache()))"
    )
    names = ("HOME", "ULLAGE_CUDNN_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if os.getuid() != 0:
        pytest.skip("only root can become a user whom the machine does not know")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr
