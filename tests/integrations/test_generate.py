"""transformers' `generate` on an emulated card, which has no value that says that all sequences have ended."""

import importlib.util
from pathlib import Path

import pytest

from tests.emulated.fresh import answer

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate.py"


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers here")
def test_generation_that_the_host_ends_takes_what_it_takes() -> None:
    """The criterion of examples/generate.py ends it after as many tokens as were asked for, with the same peak."""
    found = answer(f"""
        import runpy, sys
        sys.argv = ["generate.py", "T4"]
        example = runpy.run_path({str(EXAMPLE)!r})
        import torch
        first = torch.cuda.max_memory_allocated()
        del example["steps"][:]
        torch.cuda.reset_peak_memory_stats()
        left = iter([True] * 100 + [False])  # what the card would answer
        model = example["model"]
        model._has_unfinished_sequences = lambda *_, **__: next(left)
        length = model.generate(example["prompt"], max_new_tokens=100, pad_token_id=0).shape[1]
        tell([first, torch.cuda.max_memory_allocated(), len(example["steps"]), length])
    """)
    assert found[0] == found[1]
    assert found[2:] == [100, 116]
