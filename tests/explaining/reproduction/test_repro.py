"""A script of `ullage repro` fails with real torch on the emulated card as the recorded run did, byte for byte."""

from pathlib import Path

import pytest

from tests.explaining.reproduction.test_reproduction import history_of, two_streams
from tests.shared import fresh
from ullage.explaining.reproduction.reproduction import Reproduction, reproduce
from ullage.explaining.reproduction.transcript import script_of
from ullage.recorded.history import History

MIB = 1 << 20
CONTEXT_BYTES = 450 * MIB


SETTINGS = "settings: {} (an argument replaces them; the environment variable is ignored)\n"


def run(script: Path, total_bytes: int, *arguments: str) -> tuple[int, str]:
    """Run a script as `python SCRIPT` on an emulated card; its exit code and what it printed."""
    done = fresh.run(f"""
        import runpy, sys, ullage
        ullage.emulate("RTX 4090", total_memory_bytes={total_bytes}, context_bytes={CONTEXT_BYTES})
        sys.argv = {[str(script), *arguments]!r}
        runpy.run_path(sys.argv[0], run_name="__main__")
    """)
    assert done.stderr == ""
    return done.returncode, done.stdout


def numbers_of(reproduction: Reproduction) -> str:
    return (
        f"{reproduction.allocated_bytes:,} bytes allocated, {reproduction.cached_bytes:,} cached, "
        f"{reproduction.free_bytes:,} free"
    )


@pytest.mark.parametrize(
    ("history", "asked", "unused", "helps", "more_bytes"),
    [
        (history_of("variable_length_oom"), "346.00 MiB", "256.00 MiB", "yes", 20 << 30),
        (history_of("oom_recover"), "500.00 MiB", "0 bytes", "no", 1 << 30),
        (two_streams(), "16.00 MiB", "12.00 MiB", "no", 0),
    ],
    ids=["fragmented", "truly full", "two streams"],
)
def test_it_fails_on_the_card_as_it_did(
    history: History, asked: str, unused: str, helps: str, more_bytes: int, tmp_path: Path
) -> None:
    """PyTorch's own allocator raises at the last request: what it says it has is what the replay says, to the byte.

    The card has the room, or more. The script asks for as much as the run did, and where the run succeeds with
    expandable segments the script does.
    """
    found = reproduce(history, seconds=120)
    script = tmp_path / "repro.py"
    script.write_text(script_of(found))
    card_bytes = CONTEXT_BYTES + found.room_bytes + more_bytes
    code, text = run(script, card_bytes)
    assert code == 0, text
    assert numbers_of(found) in text
    assert f"reproduced: CUDA out of memory. Tried to allocate {asked}." in text
    assert f"{found.room_bytes / (1 << 30):.2f} GiB allowed" in text or "MiB allowed" in text
    assert f"and {unused} is reserved by PyTorch but unallocated" in text
    assert found.expandable_helps == (helps == "yes")
    if found.expandable_helps:
        code, text = run(script, card_bytes, "expandable_segments:True")
        assert (code, text) == (
            1,
            f"{SETTINGS.format('expandable_segments:True')}not reproduced: every request succeeded\n",
        )


def test_a_card_with_less_room_is_refused(tmp_path: Path) -> None:
    """Exit code 2 and one sentence."""
    found = reproduce(two_streams())
    script = tmp_path / "repro.py"
    script.write_text(script_of(found))
    code, text = run(script, CONTEXT_BYTES + found.room_bytes - 2 * MIB)
    assert code == 2
    free_bytes = found.room_bytes - 2 * MIB
    said = f"this script needs {found.room_bytes:,} bytes, but only {free_bytes:,} are free"
    assert text.startswith(SETTINGS.format("none") + said)
