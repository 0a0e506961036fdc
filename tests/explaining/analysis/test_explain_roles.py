"""Roles that explain tells from a snapshot, beside those that predict knows of the same run."""

from pathlib import Path

import pytest

from benchmarks.roles.collect import all_names, collect
from benchmarks.roles.compare import Recorded, compare
from benchmarks.roles.compare_lines import collect_lines, compare_lines
from tests.shared.commands import slow
from ullage.explaining.analysis.role import Sureness

LEAST_RIGHT = 0.97


@pytest.mark.parametrize(
    "name",
    [
        "mlp_made_on_the_card",
        "gradient_accumulation",
        "resnet18",
        "checkpointed_reentrant",
        *(pytest.param(name, marks=slow) for name in ("bert", "compiled_aot_eager")),
    ],
)
def test_explain_says_what_predict_knows(name: str, tmp_path: Path) -> None:
    assert name in all_names()
    collect(name, tmp_path)
    for recorded in (Recorded.WHOLE, Recorded.UNTIL_THE_PEAK):
        compared = compare(name, tmp_path, recorded)
        assert compared is not None
        assert compared.right_bytes >= LEAST_RIGHT * compared.peak_bytes, compared.wrong()
        certain = {(known, said): size for (known, said, sure), size in compared.found.items() if not sure}
        wrong = sum(size for (known, said), size in certain.items() if known != said)
        assert wrong <= 0.01 * sum(certain.values()), certain
    assert {sure for _, _, sure in compared.found} <= set(Sureness)


def test_what_backward_allocated_is_on_its_forward_line(tmp_path: Path) -> None:
    collect_lines("diffusion_unet_ema", tmp_path)
    lines = compare_lines("diffusion_unet_ema", tmp_path)
    total = sum(lines.said.values())
    assert lines.said[Sureness.LIKELY] >= 0.9 * total
    assert lines.right[Sureness.LIKELY] == lines.said[Sureness.LIKELY]
