"""Accumulation in parts: the bytes of the same lines by hand, and the same gradients."""

import textwrap
from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, difference, facts_of, peaks, place, told_on_cpu
from ullage.predicting.changes.accumulation.accumulate import CHANGE
from ullage.predicting.changes.change import Gradients
from ullage.predicting.changes.training.facts import BatchTensor, LoopFacts, LossForm, ModelFacts, TrainingFacts
from ullage.predicting.editing.apply import edited

BEGINNING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10)).to("cuda")
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
data = TensorDataset(torch.randn(4096 * 3, 64), torch.randint(0, 10, (4096 * 3,)))
loader = DataLoader(data, batch_size=4096)
steps = 0
"""
WHOLE = (
    BEGINNING
    + """
for x, y in loader:
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    print("one more line")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    scheduler.step()
told = [parameter.detach().cpu() for parameter in model.parameters()]
"""
)
BY_HAND = (
    BEGINNING.replace("batch_size=4096", "batch_size=1024")
    + """
for turn, (x, y) in enumerate(loader):
    x, y = x.to("cuda"), y.to("cuda")
    if turn % 4 == 0:
        optimizer.zero_grad()
    loss = criterion(model(x), y)
    (loss * 0.25).backward()
    if turn % 4 == 3:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
told = [parameter.detach().cpu() for parameter in model.parameters()]
"""
)
PLAIN = WHOLE.replace('    print("one more line")\n', "")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(WHOLE)
    return path


def facts(script: Path, items: int = 4096) -> TrainingFacts:
    known = facts_of(
        script,
        items=items,
        forward=place(script, "model(x)"),
        backward=place(script, "loss.backward()"),
        uses_loader=True,
    )
    batch = [BatchTensor(name=name, shape=[items, 64], dtype="float32") for name in ("x", "y")]
    return TrainingFacts(loop=known.loop, optimizers=known.optimizers, items=items, batch=batch)


def test_from_outside_it_is_the_same_lines_by_hand_to_the_byte(script: Path, tmp_path: Path) -> None:
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(BY_HAND)
    changed = peaks(script, "accumulate=4")
    assert bytes_of(changed) == bytes_of(peaks(by_hand))
    assert bytes_of(changed) < bytes_of(peaks(script))
    assert changed.changes_made["accumulate=4"] >= 3
    assert changed.changes_refused == {}
    assert len(changed.steps) == 3


def test_from_outside_the_same_is_computed(script: Path) -> None:
    """Steps of Adam, clipped and scheduled; a batch that does not divide into parts of one size."""
    whole = told_on_cpu(script)
    assert difference(whole, told_on_cpu(script, "accumulate=4")) < 1e-12
    assert difference(whole, told_on_cpu(script, "accumulate=3")) < 1e-12


def test_the_edit_makes_it_less_too(script: Path, tmp_path: Path) -> None:
    """Where a line between the passes keeps nobody from writing it."""
    script.write_text(PLAIN)
    known = facts(script)
    assert CHANGE.is_edit is not None
    assert CHANGE.is_edit(known, "4")
    text = edited(PLAIN, CHANGE.recipe_for(known, "4").edits)
    changed, before = peaks(script, edited={str(script): text}), peaks(script)
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(
        PLAIN.replace(
            "    loss = criterion(model(x), y)\n    loss.backward()\n",
            textwrap.indent(
                textwrap.dedent(
                    """\
                    for a, b in zip(x.split(1024), y.split(1024)):
                        loss = criterion(model(a), b)
                        loss = loss * (len(a) / len(x))
                        loss.backward()
                    """
                ),
                "    ",
            ),
        )
    )
    assert bytes_of(changed) == bytes_of(peaks(by_hand)) < bytes_of(before)
    edited_script = tmp_path / "edited.py"
    edited_script.write_text(text)
    assert difference(told_on_cpu(script), told_on_cpu(edited_script)) < 1e-12


def test_where_nobody_can_be_certain_it_is_made_from_outside(script: Path) -> None:
    known = facts(script)
    assert CHANGE.is_edit is not None
    assert not CHANGE.is_edit(known, "4")
    assert CHANGE.settings_for(known).settings == [str(1 << power) for power in range(1, 7)]
    assert CHANGE.recipe_for(known, "4").edits == ()


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (None, "number of items in a batch is unknown"),
        (1, "has only one item"),
        (9, "cannot be divided into equal parts"),
    ],
)
def test_a_batch_that_cannot_be_cut(script: Path, items: int | None, said: str) -> None:
    assert said in CHANGE.settings_for(facts_of(script, items=items, uses_loader=True)).why_not


def test_a_loop_without_a_loader_says_why_it_cannot_be_edited(script: Path) -> None:
    known = facts_of(script, items=8, forward=place(script, "model(x)"), backward=place(script, "loss.backward()"))
    said = CHANGE.settings_for(known)
    assert said.settings == ()
    assert "would run once per part" in said.why_not


def test_batch_norm_gives_other_numbers(script: Path) -> None:
    assert CHANGE.gradients_for is not None
    model = ModelFacts(kind="ResNet", library="", names=[], block_lists=[], parameter_bytes=0, dtypes=[], batch_norms=1)
    assert CHANGE.gradients_for(TrainingFacts(model=model)) is Gradients.CHANGED
    assert CHANGE.gradients_for(TrainingFacts(loop=LoopFacts(loss=LossForm.MEAN))) is Gradients.ROUNDING
    assert CHANGE.gradients_for(TrainingFacts()) is Gradients.UNKNOWN


def test_two_backward_passes_a_batch_are_refused(script: Path) -> None:
    script.write_text(WHOLE.replace("loss.backward()", "loss.backward(retain_graph=True)\n    loss.backward()"))
    assert "calls backward several times" in peaks(script, "accumulate=4").changes_refused["accumulate=4"]


def test_what_is_no_rows_of_items_is_left_whole(script: Path) -> None:
    """A collate function that gives one number for seven of its own."""
    made = "def collate(items):\n    x, y = zip(*items)\n    return torch.stack(x), torch.stack(y), torch.ones(7)\n"
    script.write_text(
        WHOLE.replace("loader =", f"{made}loader =")
        .replace("batch_size=4096", "batch_size=4096, collate_fn=collate")
        .replace("x, y in loader", "x, y, _ in loader")
    )
    changed = peaks(script, "accumulate=4")
    assert "rows that do not belong to its items" in changed.changes_refused["accumulate=4"]
    assert bytes_of(changed) == bytes_of(peaks(script))
