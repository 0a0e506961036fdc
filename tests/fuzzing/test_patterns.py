"""The time of every regular expression of the package grows no faster than the text that it reads."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing.patterns import Pattern, calls, slowness_of

PARTS = 7
BUILT_IN_FUNCTIONS = {
    "cli/flags.py": "of the names of options",
    "explaining/analysis/text/actions.py": "of constants that are measured",
    "explaining/analysis/text/domain.py": "when the module is imported",
    "explaining/analysis/text/situation.py": "when the module is imported",
    "gpu/emulator/cudnn/wheel.py": "of names that stand in the function's module",
    "gpu/emulator/torch_build.py": "of names that stand in the function's module",
    "predicting/made_up/columns.py": "of constants of the module, for names of columns",
    "recorded/message/counted_messages.py": "of constants that are measured",
    "recorded/message/disguise.py": "of words that stand in the module, without a repeat",
    "recorded/message/program_wording.py": "when the module is imported",
    "recorded/message/runs.py": "of a line of at most 200 characters, compared with lines of that length",
    "recorded/message/server_log.py": "when the module is imported",
    "recorded/message/wording.py": "when the module is imported",
}
"""The files in which a function compiles a pattern that is not a constant, and what the pattern is built of."""


@pytest.mark.skipif(
    "ULLAGE_SLOW" not in os.environ, reason="it measures times, which a busy machine disturbs: ULLAGE_SLOW=1"
)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_the_time_of_each_pattern_grows_as_the_text(part: int) -> None:
    """In a process without torch, because all modules are imported."""
    command = [sys.executable, "-m", "tests.fuzzing.patterns", str(part), str(PARTS)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert int(result.stdout.split()[-6]) > 60


def test_patterns_that_functions_build_are_known() -> None:
    found = {file for file, call in calls(in_functions=True) if not isinstance(call.args[0], ast.Constant)}
    assert found == BUILT_IN_FUNCTIONS.keys(), found ^ BUILT_IN_FUNCTIONS.keys()


@pytest.mark.parametrize(
    ("pattern", "is_slow"),
    [
        (r"(\w+?)Backward\d*(?:<.*>)?::apply\b", True),
        (r"Backward\d*(?:<.*>)?::apply\b", True),
        (r"\b\w*model\w*\.to\(", True),
        (r"""(["'])(?:\\.|(?!\1).)+\1""", True),
        (r"logits.*float32", True),
        (r"\s*\d+\s*x", True),
        (r"\bsave\w{0,60}\(", False),
        (r"(?<!\w)\w++=", False),
        (r"^\s*\d+", False),
        (rb"PK\x05[^\0]{0,100}x", False),
    ],
)
def test_a_slow_pattern_is_found(pattern: str | bytes, is_slow: bool) -> None:
    compiled = re.compile(pattern)
    assert (slowness_of(Pattern("here", compiled, is_anchored=False)) is not None) == is_slow
