"""The rule for levels, in loops of 200,000 steps: slow leaks are found, and nothing else is said to leak.

The rule was made with the loops in `long_loops`. Those in `other_long_loops` and `new_long_loops` were written later,
without reading the rule. What is expected of each was written down before it was run. The rule for growth in
`Monitor.phase` contexts and for rare equal rises was made after the first run of `new_long_loops`.
"""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    from tests.training.monitor import long_loops, new_long_loops, other_long_loops
    from tests.training.monitor.simulated import STEPS, run


def _module(name: str) -> Any:
    return {"long_loops": long_loops, "other_long_loops": other_long_loops, "new_long_loops": new_long_loops}[name]


SEEDS = 5 if SLOW else 1
MODULES = ("long_loops", "other_long_loops", "new_long_loops")
MOST_FINDINGS = 12
"""The most findings of any of these loops: the memory of a monitor does not grow with the steps."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("module", MODULES)
@inside
def test_a_slow_leak_is_found_within_a_tenth_of_the_run(module: str, seed: int) -> str:
    """And stands at the end; it is not said to have ended in between."""
    found = {}
    for loop, begun in _module(module).LEAKS.items():
        made = run(loop, seed=seed)
        leaks = [finding for finding in made.said if finding.is_leak]
        assert [finding for finding in made.monitor.findings if finding.is_leak], (loop.__name__, made.said)
        assert begun < leaks[0].step <= begun + STEPS // 10, (loop.__name__, leaks)
        assert len(made.monitor.findings) <= MOST_FINDINGS
        found[loop.__name__] = leaks[0].step
    return str(found)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("module", MODULES)
@inside
def test_nothing_is_said_to_leak_that_does_not_grow(module: str, seed: int) -> str:
    """What fills for a while is a leak only while it fills, and has ended at the end of the run."""
    found = {}
    for loop, full in _module(module).HEALTHY.items():
        made = run(loop, seed=seed)
        leaks = [finding for finding in made.said if finding.is_leak]
        assert not [finding for finding in leaks if finding.step > full], (loop.__name__, leaks)
        assert not [finding for finding in made.monitor.findings if finding.is_leak], loop.__name__
        assert len(made.monitor.findings) <= MOST_FINDINGS
        found[loop.__name__] = [(str(finding.kind), finding.step) for finding in made.said]
    return str(found)
