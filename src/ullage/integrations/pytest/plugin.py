"""The pytest plugin: `@pytest.mark.gpu_memory(peak="2GiB", leak=0, gpu="T4")`.

A marked test runs on an emulated GPU in a separate process, or on the real GPU. The plugin measures the peak of
allocated bytes and the bytes that the test leaves allocated. Other tests run as usual.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from ullage.base.errors import UllageError, UsageError, quoted
from ullage.base.units import parse_bytes

if TYPE_CHECKING:
    from ullage.integrations.pytest.process import Processes

_MARKER: Final = "gpu_memory"
_VALUES: Final = ("on", "off", "all")
_DEFAULT_GPU: Final = "A100 80GB"
_PROCESSES: "Final[pytest.StashKey[Processes]]" = pytest.StashKey()
INSIDE: Final = pytest.StashKey[bool]()
"""A key in pytest's `config`. It is set in the process that emulates a GPU for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The memory limits of a test, and the GPU that it runs on."""

    peak_bytes: int | None = None
    """The largest number of bytes that the test may allocate at the same time; None: no limit."""
    leak_bytes: int | None = None
    """The largest number of bytes that the test may leave allocated; None: no limit."""
    gpu: str | None = None
    """The GPU to emulate; None: the default GPU."""
    values: str = "on"
    """The way in which the emulated GPU computes tensor values, as in the argument `values` of `ullage.emulate`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's command-line options."""
    group = parser.getgroup("gpu memory (ullage)")
    group.addoption(
        "--gpu-memory-device",
        choices=("emulated", "real"),
        default="emulated",
        help="where tests with @pytest.mark.gpu_memory run: on an emulated GPU (default), or on this machine's",
    )
    group.addoption(
        "--gpu-memory-gpu",
        metavar="NAME",
        default=None,
        help="emulate this GPU in pytest's own process too, so that torch can be imported on a machine without CUDA; "
        f"marked tests that do not name a GPU use it too (otherwise: {_DEFAULT_GPU})",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Emulate a GPU in pytest's own process, if the user requests it.

    This happens before a conftest file can import torch.
    """
    options = early_config.known_args_namespace
    gpu = options.gpu_memory_gpu
    if gpu is None:
        return
    if options.gpu_memory_device == "real":
        raise pytest.UsageError(
            "--gpu-memory-gpu names an emulated GPU, which excludes --gpu-memory-device=real; give one of them"
        )
    from ullage.gpu.emulator import emulate

    try:
        emulate(gpu)
    except UllageError as error:
        raise pytest.UsageError(f"--gpu-memory-gpu={gpu}: {error}") from error


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `gpu_memory`."""
    config.addinivalue_line(
        "markers",
        'gpu_memory(peak="2GiB", leak=0, gpu="T4", values="on"): limit the bytes that are allocated at the same time '
        "in the test, and the bytes that it leaves allocated; on an emulated GPU, or on a real one with "
        "--gpu-memory-device=real",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes that emulate GPUs."""
    if _PROCESSES in config.stash:
        config.stash[_PROCESSES].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with the marker `gpu_memory` on an emulated or real GPU, and measure its memory."""
    if next(item.iter_markers(_MARKER), None) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports_of(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports_of(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    call = pytest.CallInfo.from_call(
        lambda: _run(item, nextitem), when="setup", reraise=(KeyboardInterrupt, pytest.exit.Exception)
    )
    if call.excinfo is None:
        return call.result or []
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return [report, _torn_down(item, nextitem)]


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    try:
        allowance = _allowance_of(item)
        is_real = item.config.getoption("gpu_memory_device") == "real"
        if is_real:
            import torch

            if not torch.cuda.is_available():
                pytest.skip("--gpu-memory-device=real needs a CUDA device, and this machine has none")
        if is_real or item.config.stash.get(INSIDE, False) or _is_here(item.config, allowance):
            from ullage.integrations.pytest.measurement import measured_reports

            return measured_reports(item, nextitem, peak_bytes=allowance.peak_bytes, leak_bytes=allowance.leak_bytes)
        reports = _processes_of(item.config).run(item, allowance.gpu or _DEFAULT_GPU, allowance.values)
        last = _torn_down(item, nextitem)
        return [*reports, last] if last.failed else reports
    except UllageError as error:
        text = str(error)
    pytest.fail(text, pytrace=False)


# The marker closest to the test function has precedence.
def _allowance_of(item: pytest.Item) -> Allowance:
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(_MARKER))):
        if mark.args or not mark.kwargs.keys() <= {"peak", "leak", "gpu", "values"}:
            raise UsageError(
                f"@pytest.mark.gpu_memory of {item.nodeid} has {[*mark.args, *mark.kwargs]}; "
                "expected peak=, leak=, gpu= and values= by name"
            )
        given |= mark.kwargs
    allowance = Allowance(
        peak_bytes=_bytes_of("peak", given.get("peak")),
        leak_bytes=_bytes_of("leak", given.get("leak")),
        gpu=given.get("gpu") or item.config.getoption("gpu_memory_gpu"),
        values=given.get("values", "on"),
    )
    if allowance.values not in _VALUES:
        raise UsageError(f"values={quoted(allowance.values)}; expected one of {', '.join(_VALUES)}")
    if not isinstance(allowance.gpu, str | None):
        raise UsageError(f"gpu={quoted(allowance.gpu)} is not the name of a GPU; expected one such as 'T4' or '24GiB'")
    return allowance


def _bytes_of(name: str, given: Any) -> int | None:
    try:
        size = parse_bytes(given) if isinstance(given, str) else given
    except UsageError as error:
        raise UsageError(f"{name}={error}") from None
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise UsageError(f"{name}={quoted(given)}; expected a number of bytes, 0 or more, or a text such as '2GiB'")
    return size


# A debugger works only in pytest's own process.
def _is_here(config: pytest.Config, allowance: Allowance) -> bool:
    if not config.getoption("usepdb", default=False) and not config.getoption("trace", default=False):
        return False
    own = config.getoption("gpu_memory_gpu")
    if own is None or allowance.gpu != own:
        raise UsageError(
            f"a debugger reaches only tests in pytest's own process, which emulates {own or 'no GPU'}, and this test "
            f"runs on {allowance.gpu or _DEFAULT_GPU!r}; give that GPU as --gpu-memory-gpu, or leave --pdb out"
        )
    return True


def _processes_of(config: pytest.Config) -> "Processes":
    from ullage.integrations.pytest.process import Processes

    if _PROCESSES not in config.stash:
        config.stash[_PROCESSES] = Processes(config)
    return config.stash[_PROCESSES]


def _torn_down(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.TestReport:
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report
