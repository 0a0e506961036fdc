"""Measure a real GPU (`make gpu`) and compare the record with the emulated GPU (`make gpu-compare`)."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # `make gpu` runs with whatever python3 the GPU's machine has
    sys.exit(
        "error: this needs Python 3.11 or newer, and here it is "
        + ".".join(map(str, sys.version_info[:2]))
        + "; choose another with: make gpu PYTHON=python3.12"
    )
