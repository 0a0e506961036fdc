"""torch.compile on the emulated card: Inductor and Triton compile for it, CUDA graphs are captured and replayed."""

import pytest

from .conftest import Predict, slow


@pytest.mark.parametrize("mode", ["default", pytest.param("reduce-overhead", marks=slow)])
def test_a_compiled_script_stands_beside_itself_without(predict: Predict, mode: str) -> None:
    ended = predict("compiles.py", mode, "--json")
    assert ended.code == 0, ended.error
    answer = ended.json
    assert answer["compiled_graphs"] == 1
    assert answer["unwritten"] == {}
    alone = predict("compiles.py", mode, "--json", "--no-beside-eager", TORCH_COMPILE_DISABLE="1").json
    assert alone["compiled_graphs"] == 0
    assert alone["eager"] is None
    assert answer["eager"] == {
        "verdict": "fits",
        "peak_allocated_bytes": alone["peak_allocated_bytes"],
        "peak_reserved_bytes": alone["peak_reserved_bytes"],
    }
    # Fusion saves activations on most versions (not on 2.15): GELU is computed again, its input alone is kept.
    assert answer["peak_allocated_bytes"] <= alone["peak_allocated_bytes"]


@slow
def test_the_report_shows_both(predict: Predict) -> None:
    ended = predict("compiles.py", "default")
    assert ended.code == 0, ended.error
    assert "With torch.compile, and with it switched off" in ended.text
    assert "compiled, 1 graph" in ended.text
