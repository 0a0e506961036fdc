"""What the sources read out of files that others published; the texts here are made up in their form."""

import json
from pathlib import Path

import pytest

from benchmarks.real_cards import golf, megatron, torchao, torchtitan, torchtune
from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import Case

GB = 10**9
README = """
AdamW impl      | Peak memory allocated (GB) | imgs/s
----------------|----------------------------|-------
PyTorch (fused) | 12.5                       | 41

Adam offload | Time per step | Max memory
-------------|---------------|-----------
None         | 1.2s/it       | 9.5 GB

Training config | Adam offload | Time per step | Max memory
----------------|--------------|---------------|-----------
AMP, eager      | None         | OOM           | OOM
AMP, eager      | ao           | 2.2s/it       | 9.9 GB
"""


@pytest.mark.parametrize(
    ("heading", "row", "column", "published"),
    [
        ("AdamW impl ", ["PyTorch (fused)"], 1, 12.5 * GB),
        ("Adam offload ", ["None"], 2, 9.5 * GB),
        ("Training config ", ["AMP, eager", "ao"], 3, 9.9 * GB),
        ("Training config ", ["AMP, eager", "None"], 3, None),
    ],
)
def test_a_row_of_the_table_that_is_meant(heading: str, row: list[str], column: int, published: float | None) -> None:
    assert torchao.published_in(README, heading, row, column) == published


def test_a_row_that_is_not_there_is_said() -> None:
    with pytest.raises(RunError, match=r"^the table under AdamW impl  has no row ours$"):
        torchao.published_in(README, "AdamW impl ", ["ours"], 1)


def test_a_technique_is_found_with_and_without_a_link() -> None:
    text = "| Technique | GiB |\n|:--|:-:|\n| Baseline | 25.5 |\n| [+ Packed](https://a.example) | 60.0 |\n"
    assert torchtune.published_in(text, "Baseline") == 25.5
    assert torchtune.published_in(text, "+ Packed") == 60.0
    with pytest.raises(RunError, match=r"^the table has no row LoRA$"):
        torchtune.published_in(text, "LoRA")


def test_a_row_of_a_numbered_table() -> None:
    rows = "| Techniques | TPS/GPU | Memory(GiB) |\n| --- | ---: | ---: |\n| FSDP | 1,234 | {} |\n"
    text = f"**Table 1** 8 GPUs.\n\n{rows.format(50.5)}\n**Table 12** 128 GPUs.\n\n{rows.format(40.5)}"
    assert torchtitan.published_in(text, "Table 1", "FSDP") == 50.5
    assert torchtitan.published_in(text, "Table 12", "FSDP") == 40.5
    with pytest.raises(RunError, match=r"^Table 2 has no row FSDP$"):
        torchtitan.published_in(text, "Table 2", "FSDP")


def test_golden_values_of_the_steps_that_are_there() -> None:
    kept = {
        "lm loss": {"values": {"1": 10.9}},
        "mem-allocated-bytes": {"values": {"1": 1024.0, "5": "nan"}},
        "mem-max-allocated-bytes": {"values": {"1": 4096.0, "5": 8192.0}},
    }
    found = megatron.figures_of(kept, [1, 5])
    assert found == {("allocated", 1): 1024, ("peak", 1): 4096, ("peak", 5): 8192}
    assert megatron.figures_of(json.loads("{}"), [1]) == {}


def test_a_script_that_its_log_begins_with(tmp_path: Path, case: Case) -> None:
    bench = Bench(folder=tmp_path, environments=tmp_path, pattern="")
    script = golf.script_of(case, bench, "import torch\n" + "=" * 100 + "\nRunning PyTorch\n")
    assert script.read_text() == "import torch"


@pytest.fixture
def case() -> Case:
    return Case(
        name="a",
        source="golf",
        what="",
        origins=(),
        file="train.log",
        card="",
        gpu="H100",
        torch_published="",
        torch="2.9.1",
    )
