"""An error of the values engine is never an error of the script: each of its functions fails in turn."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.rotation import SLOW, is_todays

_ROOT = Path(__file__).resolve().parents[3]
_DAYS = 7


def test_whatever_fails_in_the_engine_the_script_and_its_bytes_are_the_same() -> None:
    """A seventh of the functions each day. No value that is called known differs from the value without errors."""
    today = next(number for number in range(_DAYS) if is_todays(number, _DAYS))
    part = ["0", "1"] if SLOW else [str(today), str(_DAYS)]
    done = client.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gpu.values.injected", *part],
        cwd=_ROOT,
        env={name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"},
        is_forked=False,  # it emulates without values first
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (_, whole), *rest = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert {certainty for _, _, certainty in whole} <= {"KNOWN", "ASSUMED", "DRAWN", "UNKNOWN", ""}
    assert len(rest) > 40
    assert {name: wrong for name, _, _, _, wrong in rest if wrong} == {}
    assert sum(calls > 0 for _, _, calls, _, _ in rest) > 15
    silent = {
        name for name, error, calls, is_reported, _ in rest if calls and error == "InjectedError" and not is_reported
    }
    assert silent == set()


def test_the_last_frames_before_the_recursion_limit() -> None:
    """A script that recurses to the limit, with an operator in each call, gets its own error from its own frame."""
    from tests.shared.fresh import answer

    found = answer("""
        import ullage
        ullage.emulate("A100")
        import torch
        numbers = torch.zeros(3, dtype=torch.int, device="cuda")
        numbers.add_(1)
        def deeper(work, depths):
            work()
            depths.append(len(depths))
            deeper(work, depths)
        import sys
        reached = []
        for work in (lambda: None, lambda: numbers.add_(1)):
            depths = []
            try:
                deeper(work, depths)
            except RecursionError as error:
                reached.append(len(depths))
        tell([*reached, sys.getrecursionlimit()])
    """)
    plainly, on_gpu, limit = found
    assert plainly - 10 <= on_gpu <= plainly  # the frames in which ullage runs the operator
    assert limit == 1000


@pytest.mark.parametrize("count", [192, 193, 3000])
def test_chains_of_operations_on_integers(count: int) -> None:
    """Their values are known, and the memory of intermediate results is free as soon as they have been used."""
    from tests.shared.fresh import answer

    found = answer(f"""
        import ullage
        ullage.emulate("A100")
        import torch
        from ullage.gpu.values.start import current
        size = 3 << 18 if {count} < 1000 else 16
        sums = torch.zeros(size, dtype=torch.int, device="cuda")
        ring = torch.arange(size, dtype=torch.int, device="cuda")
        flags = torch.zeros(size, dtype=torch.bool, device="cuda")
        for number in range({count}):
            sums.add_(1)
            ring = torch.roll(ring, 1)
            flags |= ring == number
        values = sums[0].item(), ring[0].item(), flags.any().item()
        certainties = {{str(read.certainty.name) for read in current().reads.counts}}
        tell([values, sorted(certainties), current().evaluation.peak_bytes >> 20, current().faults.by_place])
    """)
    values, certainties, peak_mib, faults = found
    assert values[0] == count
    assert values[1] == -count % (3 << 18 if count < 1000 else 16)
    assert values[2] is True
    assert certainties == ["KNOWN"]
    assert peak_mib < 64
    assert faults == {}
