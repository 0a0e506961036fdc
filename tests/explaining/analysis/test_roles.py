"""What memory was for, told from recordings of real runs and from stacks made by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ullage.base.block_role import Role
from ullage.base.source_location import is_library
from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role import roles_of
from ullage.explaining.analysis.role.maker import Pass, makers_of
from ullage.recorded.history import Frame, History, RecordedStacks
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.report import Shares

DATA = Path(__file__).parents[2] / "snapshots"


def history_of(name: str) -> History:
    (found,) = load_snapshot(DATA / f"{name}.pickle.gz").devices.values()
    return found


def bytes_by_role(explanation: Explanation) -> dict[Role, int]:
    return {share.role: share.bytes for share in explanation.roles}


def stacks_of(*stacks: tuple[tuple[str, str, int], ...]) -> RecordedStacks:
    """Stacks of frames (file, function, line), the innermost first."""
    table = tuple(dict.fromkeys(Frame(name, file, line) for stack in stacks for file, name, line in stack))
    rows = [[table.index(Frame(name, file, line)) for file, name, line in stack] for stack in stacks]
    return RecordedStacks(
        starts=np.cumsum([0, *map(len, rows)]),
        frames=np.array([row for stack in rows for row in stack], np.int64),
        table=table,
    )


LIBRARY = "/usr/lib/python3.12/site-packages/torch"
SCRIPT = ("/home/user/train.py", "<module>", 9)
CALL = (f"{LIBRARY}/nn/modules/module.py", "_call_impl", 1790)
STEP = (f"{LIBRARY}/optim/optimizer.py", "wrapper", 533)
CHECKPOINT = (f"{LIBRARY}/utils/checkpoint.py", "unpack_hook", 1100)
HOOK = ("/home/user/train.py", "hook", 3)
ENGINE = ("/pytorch/torch/csrc/autograd/engine.cpp", "torch::autograd::Engine::thread_main(...)", 0)


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ((SCRIPT,), Pass.OUTSIDE),
        ((CALL, SCRIPT), Pass.FORWARD),
        ((STEP, SCRIPT), Pass.OPTIMIZER),
        ((CALL, STEP, SCRIPT), Pass.FORWARD),  # a closure
        ((), Pass.BACKWARD),
        ((HOOK,), Pass.BACKWARD),  # no thread of Python's own begins so
        ((STEP, HOOK), Pass.OPTIMIZER),
        ((CALL, CHECKPOINT), Pass.RECOMPUTED),
        ((CALL, HOOK), Pass.BACKWARD),  # code that torch.compile has made for backward
        ((ENGINE,), Pass.BACKWARD),
    ],
)
def test_the_innermost_of_pytorchs_functions_names_the_part_of_a_step(
    stack: tuple[tuple[str, str, int], ...], part: Pass
) -> None:
    makers = makers_of(stacks_of((SCRIPT,), stack))
    assert makers.part[1] == part


def test_where_no_stack_has_python_an_empty_one_says_nothing() -> None:
    assert makers_of(stacks_of(())).part.tolist() == [Pass.UNKNOWN, Pass.UNKNOWN]


def test_a_modules_buffers_are_told_from_its_parameters() -> None:
    module = f"{LIBRARY}/nn/modules/module.py"
    within, parameter, buffer = ((module, "_apply", line) for line in (934, 965, 1035))
    makers = makers_of(stacks_of((parameter, within, SCRIPT), (buffer, within, SCRIPT)))
    assert makers.is_parameter.tolist() == [True, False, False]
    assert makers.is_buffer.tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["normal", "oom", "two_streams", "loss_leak", "variable_length_oom"])
def test_the_roles_add_up_to_what_was_allocated(name: str) -> None:
    explanation = explain(history_of(name))
    assert sum(share.bytes for share in explanation.roles) == explanation.evidence["allocated_bytes"]
    for share in explanation.roles:
        assert share.bytes == share.certain_bytes + share.likely_bytes + share.guessed_bytes
    assert Role.UNKNOWN not in bytes_by_role(explanation)
    assert explanation.to_json()["roles"][0]["role"] == "activations"


def test_a_real_run_is_told_by_what_is_most_of_it() -> None:
    explanation = explain(history_of("normal"), with_picture=True)
    held = bytes_by_role(explanation)
    # Adam keeps two moments of each parameter.
    assert held[Role.OPTIMIZER_STATE] == pytest.approx(2 * held[Role.PARAMETERS], rel=0.01)
    assert explanation.headline.endswith("62 % ACTIVATIONS")
    assert "Activations are 62 % of this peak: a smaller batch" in explanation.sentence
    report = describe(explanation)
    (roles,) = (
        part
        for part in report.sections
        if isinstance(part, Shares) and part.title.startswith("What the memory was used for")
    )
    assert roles.parts[0].label == "activations"
    assert roles.parts[0].remark == "certain"
    assert explanation.picture is not None
    facets = {facet.title: facet for facet in explanation.picture.blocks.facets}
    assert facets["role"].labels[0] == "activations"
    assert len(facets["role"].of_block) == len(explanation.picture.blocks.blocks.born)


def test_without_stacks_nothing_is_told() -> None:
    history = history_of("normal")
    bare = replace(
        history,
        stack=np.full_like(history.stack, -1),
        segments=tuple(
            replace(segment, blocks=tuple(replace(block, stack=-1) for block in segment.blocks))
            for segment in history.segments
        ),
    )
    explanation = explain(bare)
    assert explanation.headline.startswith("PEAK ")
    assert "%" not in explanation.headline
    assert Role.ACTIVATIONS not in bytes_by_role(explanation)


def test_every_block_has_a_role_and_a_sureness() -> None:
    for name in ("normal", "oom", "two_streams", "oom_recover"):
        history = history_of(name)
        recording = Recording.of(history, program_of(history))
        roles = roles_of(recording)
        assert len(roles.role) == len(roles.sureness) == len(recording.rebuilt.size_of_key)
        assert roles.role.min() >= 0


def test_a_file_of_assembler_is_nobodys_line() -> None:
    assert is_library("./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S")


def test_a_life_that_a_failed_request_cut_short_says_nothing() -> None:
    """What a forward pass had kept when it ran out is an activation, though it was freed before any backward pass."""
    history = history_of("oom_recover")
    recording = Recording.of(history, program_of(history))
    roles = roles_of(recording)
    assert bytes_by_role(explain(history))[Role.ACTIVATIONS] > 0.9 * recording.moment.now.allocated_bytes
    assert {roles.role_of(block.key) for block in recording.held()} >= {Role.ACTIVATIONS, Role.PARAMETERS}
