"""Changes to the model and its activations on the CPU: the same gradient where they say so."""

from pathlib import Path

import pytest

from tests.predicting.changes.runs import difference, told_on_cpu

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("change", ["checkpoint=all", "checkpoint=first:2", "offload=on", "fused_loss=500"])
def test_gradients_are_the_same(change: str) -> None:
    script = SCRIPTS / "values.py"
    assert difference(told_on_cpu(script), told_on_cpu(script, change)) < 1e-12


@pytest.mark.parametrize("change", ["checkpoint=all", "checkpoint=first:2", "offload=on"])
def test_running_statistics_are_those_of_the_unchanged_run(change: str) -> None:
    script = SCRIPTS / "running_statistics.py"
    assert difference(told_on_cpu(script), told_on_cpu(script, change)) < 1e-12


def test_attention_in_one_kernel_has_the_same_gradient() -> None:
    script = SCRIPTS / "attention_values.py"
    assert difference(told_on_cpu(script), told_on_cpu(script, "sdpa=on")) < 1e-12


def test_switched_checkpoints_have_the_same_gradient() -> None:
    script = SCRIPTS / "attention_values.py"
    assert difference(told_on_cpu(script), told_on_cpu(script, "checkpoint=first:1")) < 1e-12


def test_mixed_precision_has_nearly_the_same_loss(tmp_path: Path) -> None:
    script = tmp_path / "values.py"  # autocast leaves float64 as it is
    first = "import torch\ntorch.set_default_dtype(torch.float32)\n"
    script.write_text(first + (SCRIPTS / "values.py").read_text())
    [loss], *gradients = told_on_cpu(script)
    [mixed], *changed = told_on_cpu(script, "autocast=bfloat16")
    assert 0 < abs(loss - mixed) < 0.02 * loss
    assert difference(gradients, changed) < 0.02
