"""The pytest plugin, as a user has it: pytest in a process of its own, on test files of a user's."""

import contextlib
import importlib.metadata
import io
import sys
import tempfile
from pathlib import Path

import pytest

from tests.shared.inside import SLOW, inside

pytest_plugins = ["pytester"]

_IS_INSTALLED = any(entry.name == "ullage" for entry in importlib.metadata.entry_points(group="pytest11"))
_QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
_IMPORT = """
    import pytest
    try:
        import torch
    except (ImportError, OSError):  # PyTorch's build for CUDA, where there is no CUDA: pytest's own process
        torch = None
"""
_TESTS = f"""{_IMPORT}
    import os, warnings
    KEPT = []

    @pytest.fixture(scope="module")
    def model():
        return torch.nn.Linear(1024, 1024, bias=False).cuda()

    @pytest.mark.gpu_memory(peak="100MiB", leak=0, gpu="T4")
    def test_that_takes_too_much(tmp_path, request):
        print("a word of the test")
        (tmp_path / "file").write_text("x")
        assert "gpu-memory" in str(tmp_path)
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.zeros(512, 1024, device="cuda")).sum().backward()
            optimizer.step()

    @pytest.mark.gpu_memory(peak="40MiB", leak=0, gpu="T4")
    @pytest.mark.parametrize("is_kept", [False, True])
    def test_leak(is_kept, model, capsys):
        assert not KEPT, "each test has a process of its own"
        print("caught")
        assert capsys.readouterr().out == "caught\\n"
        warnings.warn("a warning of the test")
        made = torch.zeros(1 << 20, device="cuda")
        model(torch.zeros(8, 1024, device="cuda")).sum().backward()
        if is_kept:
            KEPT.append(made)

    class TestAll:
        pytestmark = pytest.mark.gpu_memory(gpu="T4", peak="1MiB")

        @pytest.mark.gpu_memory(peak="5MiB")
        def test_the_nearest_marker_wins(self):
            torch.zeros(1 << 20, device="cuda")

        @pytest.mark.xfail
        def test_that_is_expected_to_fail(self):
            torch.zeros(1 << 20, device="cuda")

        @pytest.mark.skip(reason="not now")
        def test_that_is_skipped(self):
            raise AssertionError

    @pytest.mark.gpu_memory(gpu="T4")
    def test_that_runs_out():
        kept = [torch.zeros(1 << 30, device="cuda") for _ in range(5)]

    @pytest.mark.gpu_memory(gpu="T4")
    def test_that_fails():
        assert [1, 2] == [1, 3]

    @pytest.mark.gpu_memory(gpu="T4")
    def test_that_ends_its_process():
        os.kill(os.getpid(), 11)

    @pytest.mark.gpu_memory(gpu="T4")
    def test_that_leaves_without_a_word():
        os._exit(0)

    @pytest.mark.gpu_memory(gpu="T4", most=3)
    def test_with_a_wrong_marker():
        pass

    @pytest.mark.gpu_memory(gpu="T5")
    def test_on_a_card_that_there_is_not():
        pass

    def test_without_the_marker():
        assert torch is None
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Run pytest where ullage is installed: where it is not, its entry point is put in front of it."""
    site = pytester.mkdir("site")
    if not _IS_INSTALLED:
        info = site / "ullage-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ullage\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[pytest11]\nullage = ullage.integrations.pytest.plugin\n")
        (info / "RECORD").write_text("ullage/__init__.py,,\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def ask(*arguments: str) -> pytest.RunResult:
        return pytester.run(sys.executable, "-m", "pytest", *_QUIET, *arguments, timeout=900)

    return ask


def test_what_a_marked_test_may_do_and_what_it_is_told(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    """Peak and leak are judged to the byte on an emulated card; fixtures, output, warnings, outcomes are as ever."""
    pytester.makepyfile(test_all=_TESTS)
    result = run("-n1", "--junitxml=out.xml", "-rA")
    result.assert_outcomes(passed=3, failed=4, errors=4, skipped=1, xfailed=1, warnings=2)
    result.stdout.fnmatch_lines_random(
        [
            "gpu_memory: the peak on Tesla T4 was 1??.? MiB, *.? MiB more than peak=100.0 MiB allows",
            "    64.0 MiB  optimizer state",
            "    32.0 MiB  parameters",
            "    32.0 MiB  gradients",
            "a word of the test",
            "gpu_memory: 4.0 MiB more are allocated after the test than before it (0 B); leak=0 B is allowed",
            "     4.0 MiB  global           test_all.py global 'KEPT' -> list?0?  allocated at *test_all.py:*",
            "*a warning of the test*",
            "*OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB*",
            "*12.00 GiB  activations and others  *test_all.py:*",
            "*At index 1 diff: 2 != 3",
            "*the process of test_all.py::test_that_ends_its_process ended with signal 11*",
            "*the process of test_all.py::test_that_leaves_without_a_word ended with exit code 0*",
            "*test_with_a_wrong_marker has ?'gpu', 'most'?; expected peak=, leak=, gpu= and values= by name*",
            "*gpu='T5': no GPU named 'T5' is known; nearest: *. Or give a size, such as 24GiB",
        ]
    )
    assert "--gpu " not in result.stdout.str(), "an option of other commands, which pytest does not have"
    properties = Path(pytester.path, "out.xml").read_text()
    assert 'name="gpu_memory_leak_bytes" value="4194304"' in properties
    assert f'name="gpu_memory_peak_bytes" value="{12 << 30}"' in properties


def test_a_test_file_that_imports_torch_where_only_an_emulated_card_lets_it(
    pytester: pytest.Pytester,
    run,  # type: ignore[no-untyped-def]
) -> None:
    """`--gpu-memory-gpu` emulates in pytest's own process too, and a marked test may still have another card."""
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers")
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.fixture(scope="module", autouse=True)
        def set_up_in_both():
            yield

        def test_without_a_marker():
            assert "L4" in torch.cuda.get_device_name()

        @pytest.mark.gpu_memory(gpu="24GiB")
        def test_of_another_card():
            assert torch.cuda.get_device_properties(0).total_memory == 24 << 30
        """
    )
    pytester.makepyfile(test_next="def test_of_another_file(): pass")
    run("--gpu-memory-gpu=L4", "-k", "not nothing").assert_outcomes(passed=3)
    run("--gpu-memory-gpu=L4", "--gpu-memory-device=real").stderr.fnmatch_lines(["*names an emulated GPU*"])
    run("--gpu-memory-gpu=GTX 9").stderr.fnmatch_lines(["*--gpu-memory-gpu=GTX 9: *"])


_REAL = """
import pytest, torch
KEPT = []

@pytest.mark.gpu_memory(peak="3MiB", leak="4KiB", gpu="T4")
@pytest.mark.parametrize("size", [1 << 10, 1 << 18, 1 << 20])
def test_size(size):
    KEPT.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
    torch.zeros(3 * size, dtype=torch.uint8, device="cuda")
"""


@inside
def test_a_card_that_is_there() -> None:
    """On the real card, tests run in pytest's own process; a card before pytest begins is one like any other."""
    out = _pytest_here("--gpu-memory-device=real", tests=_REAL)
    assert "2 failed, 1 passed" in out
    assert "the peak on Tesla T4 was 4.3 MiB, 1.3 MiB more than peak=3.0 MiB allows" in out
    assert "   257.0 KiB  allocated before" in out
    assert "gpu_memory: 256.0 KiB more are allocated after the test than before it (1.0 KiB); leak=4.0 KiB is" in out


@inside
def test_a_debugger() -> None:
    """With `--pdb`, tests of pytest's own card run in its process, and others say why they cannot."""
    tests = _REAL + '@pytest.mark.gpu_memory(gpu="L4")\ndef test_other():\n    pass\n'
    out = _pytest_here("--gpu-memory-gpu=T4", "--pdb", "-k", "1024 or other", tests=tests)
    assert "1 passed, 2 deselected, 1 error" in out
    assert "a debugger reaches only tests in pytest's own process, which emulates T4, and this test runs on 'L4'" in out


def _pytest_here(*arguments: str, tests: str) -> str:
    """Run pytest in this process, which has a card."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        file = Path(folder, "test_made.py")
        file.write_text(tests)
        name = "ullage" if _IS_INSTALLED else "ullage.integrations.pytest.plugin"
        pytest.main([*_QUIET, "-p", name, f"--rootdir={folder}", *arguments, str(file)])
    return out.getvalue()


@pytest.mark.skipif(not SLOW, reason="two more processes that import torch: ULLAGE_SLOW=1")
def test_a_file_that_uses_the_card_when_it_is_imported(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    """A copy of a process that has initialised CUDA could not use it: each test of such a file has a fresh process."""
    code = """
    X = None if torch is None else torch.zeros(1 << 20, device="cuda")

    @pytest.mark.gpu_memory(gpu="L4", leak=0)
    @pytest.mark.parametrize("number", [1, 2])
    def test_one(number):
        assert not hasattr(torch, "number")
        torch.number = torch.zeros(1 << number, device="cuda").numel()
"""
    pytester.makepyfile(_IMPORT + code)
    run().assert_outcomes(passed=2)


def test_without_marked_tests_nothing_is_started(pytester: pytest.Pytester, run) -> None:  # type: ignore[no-untyped-def]
    """Neither torch nor the emulator is imported for the plugin."""
    pytester.makepyfile(
        """
        import sys
        def test_modules():
            assert "torch" not in sys.modules
            unwanted = ("ullage.gpu.emulator", "ullage.training.ownership")
            assert not [name for name in sys.modules if name.startswith(unwanted)]
        """
    )
    run().assert_outcomes(passed=1)
