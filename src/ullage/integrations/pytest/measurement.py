"""Measure the memory peak of a test, and the memory that the test leaves allocated.

A test that exceeds a limit is reported as failed.
"""

import gc

import pytest
import torch
from _pytest.runner import runtestprotocol

from ullage.base.units import text_of_bytes
from ullage.integrations.peak import PeakContents, PeakWatch
from ullage.training.ownership.owners import owners

_SECTION = "GPU memory"
_LEAST_SHOWN = "1KiB"


def measured_reports(
    item: pytest.Item, nextitem: pytest.Item | None, *, peak_bytes: int | None, leak_bytes: int | None
) -> list[pytest.TestReport]:
    """Run a test with its fixtures, and return its reports.

    The test fails if it exceeds a memory limit. PyTorch's peak statistics are reset before the test.

    Args:
        item: the test.
        nextitem: the test that follows, if there is one.
        peak_bytes: the most bytes that may be allocated at the same time; None: no limit.
        leak_bytes: the most bytes by which allocated memory may grow during the test; None: no limit.
    """
    torch.cuda.init()
    before = _settled_bytes()
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    watch = PeakWatch()
    watch.start()
    noting = _NoteAtEnd(watch, item)
    item.config.pluginmanager.register(noting)
    reports: list[pytest.TestReport] = []
    is_over = False
    try:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        is_over = peak_bytes is not None and watch.highest_bytes > peak_bytes
    finally:
        item.config.pluginmanager.unregister(noting)
        peak = watch.stop(is_explained=is_over or any(report.failed for report in reports))
    after = _settled_bytes()
    call = next((report for report in reports if report.when == "call"), None)
    if call is None:
        return reports
    figures = [("gpu_memory_peak_bytes", peak.bytes), ("gpu_memory_leak_bytes", after - before)]
    failure = "\n\n".join(filter(None, [_over_peak(peak, peak_bytes), _leak(before, after, leak_bytes)]))
    if call.passed and failure:
        failed = _failed(item, call, failure)
        reports[reports.index(call)] = call = failed
    elif call.failed and peak.bytes:
        call.sections.append((_SECTION, str(peak)))
    for report in reports:
        report.user_properties.extend(figures)
    return reports


class _NoteAtEnd:
    def __init__(self, watch: PeakWatch, item: pytest.Item) -> None:
        self._watch = watch
        self._item = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if item is self._item:
            self._watch.note_alive()


# cuBLAS workspaces are not leaks.
def _settled_bytes() -> int:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))


def _over_peak(peak: PeakContents, allowed: int | None) -> str:
    if allowed is None or peak.bytes <= allowed:
        return ""
    return (
        f"gpu_memory: the peak on {torch.cuda.get_device_name()} was {text_of_bytes(peak.bytes)}, "
        f"{text_of_bytes(peak.bytes - allowed)} more than peak={text_of_bytes(allowed)} "
        f"allows\n{peak}"
    )


def _leak(before: int, after: int, allowed: int | None) -> str:
    if allowed is None or after - before <= allowed:
        return ""
    return (
        f"gpu_memory: {text_of_bytes(after - before)} more are allocated after the test than before it "
        f"({text_of_bytes(before)}); leak={text_of_bytes(allowed)} is allowed\n{owners(_LEAST_SHOWN)}"
    )


def _failed(item: pytest.Item, passed: pytest.TestReport, failure: str) -> pytest.TestReport:
    call = pytest.CallInfo.from_call(lambda: pytest.fail(failure, pytrace=False), when="call")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    report.start, report.stop, report.duration = passed.start, passed.stop, passed.duration
    return report
