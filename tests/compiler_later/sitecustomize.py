"""Loaded at the start of most processes that predict in tests; Pythons of any version read it, even 2.7."""

import sys

if sys.version_info >= (3, 11):  # noqa: UP036  others have no torch of ours
    import ullage_tests_compiler_later  # noqa: F401  it does all of it when it is imported
