"""Roles: owners come first, then birth and life; and the rows always sum to what is allocated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import ENTRY, GRAD_ENABLED, Entries, EntryKind, Phase
from ullage.predicting.prediction.observation.role import Moments, Note, blocks_at, bytes_by_role, lives_of, roles_of

PAGE = 512


def journal(*events: tuple[EntryKind, int, int, Phase, int]) -> Entries:
    """Entries from (kind, address, size, phase, flags), with the level after each."""
    entries = np.zeros(len(events), ENTRY)
    allocated = 0
    for index, (kind, address, size, phase, flags) in enumerate(events):
        allocated += size if kind is EntryKind.ALLOC else -size if kind is EntryKind.FREE else 0
        entries[index] = (address, size, allocated, allocated, kind, 0, phase, flags, 0, 0)
    return entries


def role_of_first(
    entries: Entries,
    notes: tuple[Note, ...] = (),
    *,
    forward: tuple[int, ...] = (),
    backward: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
) -> Role:
    moments = Moments(forward_starts=forward, backward_starts=backward, backward_ends=ends)
    return roles_of(entries, lives_of(entries), notes, moments)[0]


def born(phase: Phase, *, grad: bool = True, address: int = 1) -> tuple[EntryKind, int, int, Phase, int]:
    return (EntryKind.ALLOC, address, PAGE, phase, GRAD_ENABLED if grad else 0)


def freed(address: int = 1) -> tuple[EntryKind, int, int, Phase, int]:
    return (EntryKind.FREE, address, PAGE, Phase.OTHER, 0)


MARK = (EntryKind.MARK, 0, 0, Phase.OTHER, 0)


@pytest.mark.parametrize("role", [Role.PARAMETERS, Role.GRADIENTS, Role.OPTIMIZER_STATE, Role.BUFFERS, Role.INPUTS])
def test_an_owner_names_the_block_whatever_its_birth(role: Role) -> None:
    assert role_of_first(journal(born(Phase.BACKWARD), MARK), (Note(2, 1, role),)) is role


def test_an_owner_of_another_life_at_the_same_address_does_not_count() -> None:
    entries = journal(born(Phase.BACKWARD, grad=False), freed(), born(Phase.OTHER), MARK)
    assert role_of_first(entries, (Note(4, 1, Role.PARAMETERS),)) is Role.TEMPORARIES


def test_a_parameter_passed_as_an_argument_stays_a_parameter() -> None:
    entries = journal(born(Phase.OTHER), MARK)
    assert role_of_first(entries, (Note(2, 1, Role.INPUTS), Note(2, 1, Role.PARAMETERS))) is Role.PARAMETERS


def test_a_workspace_is_named_by_the_library_that_got_it() -> None:
    entries = journal(born(Phase.FORWARD), (EntryKind.WORKSPACE, 1, PAGE, Phase.FORWARD, 0))
    assert role_of_first(entries) is Role.WORKSPACES


def test_forward_memory_alive_at_the_backward_pass_is_an_activation_and_other_is_not() -> None:
    kept = journal(born(Phase.FORWARD), MARK, freed())
    gone = journal(born(Phase.FORWARD), freed(), MARK)
    assert role_of_first(kept, backward=(1,)) is Role.ACTIVATIONS
    assert role_of_first(gone, backward=(2,)) is Role.TEMPORARIES


def test_a_forward_pass_that_never_reached_backward_holds_activations_only_with_gradients_on() -> None:
    assert role_of_first(journal(born(Phase.FORWARD), MARK)) is Role.ACTIVATIONS
    assert role_of_first(journal(born(Phase.FORWARD, grad=False), MARK)) is Role.TEMPORARIES


def test_the_loss_after_the_model_is_an_activation_and_the_batch_before_it_an_input() -> None:
    loss = journal(MARK, born(Phase.OTHER), MARK, freed())
    batch = journal(born(Phase.OTHER), MARK, MARK, freed())
    moments_loss = Moments(forward_starts=(0,), backward_starts=(2,), backward_ends=(3,))
    assert roles_of(loss, lives_of(loss), (), moments_loss)[0] is Role.ACTIVATIONS
    assert role_of_first(batch, forward=(1,), backward=(2,), ends=(3,)) is Role.INPUTS


def test_backward_memory_is_temporary_but_recomputed_activations_are_activations() -> None:
    assert role_of_first(journal(born(Phase.BACKWARD, grad=False), freed())) is Role.TEMPORARIES
    assert role_of_first(journal(born(Phase.BACKWARD, grad=True), freed())) is Role.ACTIVATIONS


def test_memory_that_nothing_explains_is_unknown() -> None:
    assert role_of_first(journal(born(Phase.OTHER), MARK)) is Role.UNKNOWN


@given(st.data())
def test_rows_sum_to_what_is_allocated_at_every_moment(data: st.DataObject) -> None:
    """For any life of blocks, any notes and any rounding: the rows are exactly the allocator's level."""
    alive: list[int] = []
    events = []
    for address in range(1, data.draw(st.integers(1, 30)) + 1):
        phase = data.draw(st.sampled_from(list(Phase)))
        events.append(born(phase, grad=data.draw(st.booleans()), address=address))
        alive.append(address)
        if alive and data.draw(st.booleans()):
            events.append(freed(alive.pop(data.draw(st.integers(0, len(alive) - 1)))))
    entries = journal(*events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    notes = [
        Note(
            data.draw(st.integers(0, len(events))),
            data.draw(st.integers(1, 30)),
            data.draw(st.sampled_from(list(Role)[:4])),
        )
        for _ in range(5)
    ]
    lives = lives_of(entries)
    moments = Moments(forward_starts=tuple(cuts[:2]), backward_starts=tuple(cuts[2:]), backward_ends=tuple(cuts[3:]))
    roles = roles_of(entries, lives, notes, moments)
    asked = {int(index): data.draw(st.integers(1, PAGE)) for index in lives.born}
    for moment in range(len(events)):
        sums = bytes_by_role(blocks_at(moment, lives, roles, device=0), asked)
        assert sum(sums.values()) == entries["allocated"][moment]
