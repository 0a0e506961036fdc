"""What `ullage.owners` and `ullage.release` say and do about memory that one culprit holds."""

import gc
from typing import Any

import pytest

from tests.rotation import LEFT_OUT, is_todays
from tests.shared.inside import SLOW, inside
from tests.training.ownership.scenarios.scenario import Entry, Scenario, entries, load

MIB = 1 << 20
EVERY = 5
"""One of so many scenarios is run where not all are: another fifth each day, so that each is run within a week."""


def _parameters() -> list[Any]:
    """One for each scenario; those that cannot be run here say why."""
    found = []
    for number, entry in enumerate(entries()):
        is_left_out = (entry.is_slow and not SLOW) or not is_todays(number, EVERY)
        reason = entry.reason or (LEFT_OUT if is_left_out else "")
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        if entry.fails:
            marks.append(pytest.mark.xfail(strict=True, reason=entry.fails))
        found.append(pytest.param(entry.name, marks=marks, id=entry.name))
    return found


def _entry(name: str) -> Entry:
    return next(entry for entry in entries() if entry.name == name)


def test_there_are_scenarios() -> None:
    """No scenario bears another's name, and there are as many as were promised."""
    names = [entry.name for entry in entries()]
    assert len(names) == len(set(names)) >= 45


@pytest.mark.parametrize("name", _parameters())
@inside
def test_the_culprit_is_named_and_everything_comes_back(name: str) -> None:
    """The owners sum to what is allocated, the culprit is named, and what is released is gone or named, to the byte."""
    import torch

    from ullage.training.ownership.owners import owners
    from ullage.training.ownership.release import release

    scenario = load(_entry(name))
    ended = []

    def end(*objects: Any, named: Any = ()) -> None:
        ended.append(name)
        if scenario.kind != "garbage":
            gc.collect()
        torch.cuda.empty_cache()
        before_bytes = torch.cuda.memory_allocated()
        assert before_bytes >= max(scenario.mib * MIB, 1), "the scenario does not hold what it says"
        _check_named(scenario, owners(0), before_bytes)

        certificate = release(*objects)
        assert certificate.before_bytes == before_bytes, certificate
        _check(certificate)
        if named:
            certificate = release(*objects, *(named() if callable(named) else named))
            _check(certificate)
        if not scenario.stays:
            assert (certificate.after_bytes, certificate.reserved_bytes) == (0, 0), certificate
        elif certificate.after_bytes >= scenario.mib * MIB:
            _check_named(scenario, certificate.remaining, certificate.after_bytes)

    scenario.run(end)
    assert ended, "the scenario did not come to its end"


def _check_named(scenario: Scenario, holdings: Any, allocated_bytes: int) -> None:
    """The rows sum to what is allocated, and the culprit has one."""
    assert holdings.total_bytes == allocated_bytes, holdings
    found = [row for row in holdings if scenario.holder in row.path and row.kind == scenario.kind]
    assert found, f"no row of kind {scenario.kind} names {scenario.holder}:\n{holdings}"
    assert sum(row.bytes for row in found) >= scenario.mib * MIB, holdings


def _check(certificate: Any) -> None:
    """What a certificate says is so."""
    import torch

    assert certificate.after_bytes == torch.cuda.memory_allocated(), certificate
    assert certificate.reserved_bytes == torch.cuda.memory_reserved(), certificate
    assert certificate.remaining.total_bytes == certificate.after_bytes, certificate


@inside
def test_variables_of_an_error_that_somebody_has_looked_at_come_back() -> None:
    """A debugger or a formatter that has read `f_locals` of an error's frames keeps nothing of them on the card."""
    import traceback

    import torch

    from tests.training.ownership.scenarios.frame import caught
    from ullage.training.ownership.release import release

    error = caught()
    read = [dict(frame.f_locals) for frame, _ in traceback.walk_tb(error.__traceback__)]
    del read
    certificate = release(error)
    assert (certificate.after_bytes, certificate.reserved_bytes) == (0, 0), certificate
    assert torch.cuda.memory_allocated() == 0


@inside
def test_owners_keep_nothing_alive() -> None:
    """What a variable of a running function has let go is freed at once, although its owner was asked for before."""
    import torch

    from ullage.training.ownership.owners import owners

    kept = torch.empty(4 << 18, device="cuda")
    gone = torch.empty(4 << 18, device="cuda")
    holdings = owners()
    del gone
    assert torch.cuda.memory_allocated() == 4 * MIB
    assert holdings.total_bytes == 8 * MIB
    del kept
