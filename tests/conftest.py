"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all-records`."""
    parser.addoption(
        "--all-records",
        action="store_true",
        help="compare every recorded workload of the installed torch, not only the default cards (tests/truth)",
    )
