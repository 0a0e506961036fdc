"""Options of the whole suite, and the signals that its processes are born with."""

import signal

import pytest

# Whoever starts the suite in the background of a script (`make test &`, nohup) gives it interrupts that are ignored,
# and every process that a test starts and interrupts would inherit that. A signal with a handler is not inherited so.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all-records`."""
    parser.addoption(
        "--all-records",
        action="store_true",
        help="compare every recorded workload of the installed torch, not only the default cards (tests/truth)",
    )
