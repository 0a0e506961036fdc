"""What a script misses that Triton compiles while it runs."""

from pathlib import Path

import pytest

from ullage.predicting.prediction.verdict.failure import missing_tool

BUILD = "CalledProcessError: Command '['/bin/gcc', '/lib/triton/nvidia/driver.c']' returned non-zero exit status 1."


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
    ],
)
def test_no_compiler(error: str) -> None:
    told = missing_tool(error)
    assert told is not None
    assert "this machine has no C compiler; install gcc" in told


def test_no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    told = missing_tool(BUILD)
    assert told is not None
    assert f"no Python headers ({tmp_path}/Python.h); install them" in told


def test_a_build_that_fails_for_another_reason_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert missing_tool(BUILD) is None


@pytest.mark.parametrize("error", ["", "CalledProcessError: Command 'make' failed", "No module named 'triton'"])
def test_other_errors(error: str) -> None:
    assert missing_tool(error) is None
