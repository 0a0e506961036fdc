"""Changes to optimizers: the bytes of the same lines by hand, and what they leave as it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.predicting.changes.runs import bytes_of, difference, facts_of, peaks, place, told_on_cpu
from ullage.predicting.changes.change import Change
from ullage.predicting.changes.optimizer import (
    eight_bit_optimizer,
    optimizer_default,
    step_in_backward,
    zeroed_gradients,
)
from ullage.predicting.editing.apply import edited

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(8))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    loss = model(torch.ones(16, 768).to("cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
told = [parameter.detach().cpu() for parameter in model.parameters()]
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def by_recipe(script: Path, change: Change, setting: str, **loop: Any) -> str:
    known = facts_of(script, **loop)
    assert change.settings_for(known).settings == (setting,)
    return edited(script.read_text(), change.recipe_for(known, setting).edits)


@pytest.mark.parametrize(
    ("change", "argument", "is_less"),
    [
        (optimizer_default.FUSED, "fused=True", True),
        (optimizer_default.FOR_LOOP, "foreach=False", True),
    ],
    ids=["fused", "for_loop"],
)
def test_an_implementation_of_the_step(script: Path, change: Change, argument: str, is_less: bool) -> None:
    text = by_recipe(script, change, "on")
    assert text == SCRIPT.replace("lr=1e-3)", f"lr=1e-3, {argument})")
    changed = peaks(script, f"{change.key}=on")
    assert changed.changes_made == {f"{change.key}=on": 1}
    assert bytes_of(changed) == bytes_of(peaks(script, edited={str(script): text}))
    assert (bytes_of(changed) < bytes_of(peaks(script))) is is_less


@pytest.mark.parametrize("change", ["fused=on", "for_loop=on"])
def test_an_implementation_computes_the_same(script: Path, change: str) -> None:
    assert difference(told_on_cpu(script), told_on_cpu(script, change)) < 1e-12


def test_what_the_script_chooses_itself_stays(script: Path) -> None:
    script.write_text(SCRIPT.replace("lr=1e-3)", "lr=1e-3, foreach=True)"))
    assert peaks(script, "fused=on").changes_made == {}


def test_gradients_are_given_back(script: Path) -> None:
    """They are beside the next forward pass, here the smaller one: a second model takes their room."""
    room = '    room = torch.ones(1 << 23, device="cuda") * 2\n    del room\n'
    script.write_text(SCRIPT.replace("    loss = model(", f"{room}    loss = model("))
    change = zeroed_gradients.CHANGE
    known = {"zero_grad": place(script, "zero_grad("), "keeps_zeroed": True}
    text = by_recipe(script, change, "none", **known)
    assert "zero_grad(set_to_none=True)" in text
    changed = peaks(script, "zero_grad=none")
    assert changed.changes_made["zero_grad=none"] >= 2
    assert bytes_of(changed) == bytes_of(peaks(script, edited={str(script): text}))
    assert bytes_of(changed) < bytes_of(peaks(script))
    assert difference(told_on_cpu(script), told_on_cpu(script, "zero_grad=none")) == 0


def test_gradients_that_are_given_back_already(script: Path) -> None:
    assert "does not keep" in zeroed_gradients.CHANGE.settings_for(facts_of(script)).why_not


def test_eight_bit_states_where_a_library_is_installed(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of that name stands in: which arguments it gets, and that its states are what the run allocates."""
    folder = tmp_path / "packages" / "bitsandbytes"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from bitsandbytes import optim\n")
    (folder / "optim.py").write_text(
        "import torch\n"
        "class AdamW8bit(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr=1e-3, weight_decay=1e-2):\n"
        "        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))\n"
        "    @torch.no_grad()\n"
        "    def step(self):\n"
        "        for parameter in self.param_groups[0]['params']:\n"
        "            if not self.state[parameter]:\n"
        "                for name in ('one', 'two'):\n"
        "                    self.state[parameter][name] = torch.zeros_like(parameter, dtype=torch.uint8)\n"
        "            parameter.sub_(parameter.grad, alpha=self.param_groups[0]['lr'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.syspath_prepend(str(folder.parent))
    script.write_text(SCRIPT.replace("lr=1e-3)", "lr=1e-3, weight_decay=0.1)"))
    text = by_recipe(script, eight_bit_optimizer.CHANGE, "bitsandbytes")
    assert "import bitsandbytes as bnb\n" in text
    assert "optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-3, weight_decay=0.1)" in text
    changed = peaks(script, "eight_bit=bitsandbytes")
    assert changed.changes_made == {"eight_bit=bitsandbytes": 1}
    assert bytes_of(changed) == bytes_of(peaks(script, edited={str(script): text}))
    assert bytes_of(changed) < bytes_of(peaks(script))


def test_an_argument_that_eight_bit_states_do_not_know_is_told(script: Path) -> None:
    script.write_text(SCRIPT.replace("lr=1e-3)", "lr=1e-3, maximize=True)"))
    changed = peaks(script, "eight_bit=torchao")
    assert "does not accept" in changed.changes_refused["eight_bit=torchao"]
    assert changed.changes_made == {}


def test_eight_bit_states_need_an_adam(script: Path) -> None:
    known = facts_of(script, optimizer="SGD")
    assert "no AdamW or Adam" in eight_bit_optimizer.CHANGE.settings_for(known).why_not


STEPS = SCRIPT.replace("set_to_none=False", "set_to_none=True")


def test_steps_during_the_backward_pass(script: Path) -> None:
    """The gradients of eight layers are never there together."""
    script.write_text(STEPS)
    text = by_recipe(script, step_in_backward.CHANGE, "on")
    changed = peaks(script, "step_in_backward=on")
    assert changed.changes_made == {"step_in_backward=on": 1}
    assert bytes_of(changed) == bytes_of(peaks(script, edited={str(script): text}))
    assert changed.peak_allocated_bytes < peaks(script).peak_allocated_bytes


def test_steps_during_the_backward_pass_are_the_same_steps(script: Path, tmp_path: Path) -> None:
    """A scheduler changes the rate of the optimizer that the script has."""
    schedule = "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)\n"
    script.write_text(STEPS.replace("for step", f"{schedule}for step").replace("told =", "    schedule.step()\ntold ="))
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(by_recipe(script, step_in_backward.CHANGE, "on"))
    whole = told_on_cpu(script)
    assert difference(whole, told_on_cpu(script, "step_in_backward=on")) < 1e-12
    assert difference(whole, told_on_cpu(by_hand)) < 1e-12


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ({"clips_gradients": True}, "clips"),
        ({"has_scaler": True}, "GradScaler"),
        ({"passes_per_step": 2}, "several backward passes"),
        ({"library": "lightning"}, "belongs to lightning"),
    ],
)
def test_where_steps_need_all_gradients(script: Path, loop: dict[str, Any], said: str) -> None:
    assert said in step_in_backward.CHANGE.settings_for(facts_of(script, **loop)).why_not
