"""A framework that an adapter needs."""

import json

import pytest

from ullage.base.errors import UsageError
from ullage.integrations.framework import framework


def test_a_missing_framework_is_answered_with_the_install_line() -> None:
    """The error names the package and how to get it."""
    with pytest.raises(UsageError, match=r"needs no_such_framework, .*: pip install no_such_framework$"):
        framework("no_such_framework.pytorch", "nor_this_one")


def test_one_that_is_imported_already_is_taken() -> None:
    """Where two names mean a framework, the user's own is the one that is there."""
    assert framework("no_such_framework.pytorch", "json") is json
