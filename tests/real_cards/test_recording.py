"""A real card's recording and the same computation on the emulated card: every event, every block, every peak."""

import json
from pathlib import Path

import pytest

from benchmarks.real_cards.facts import facts_of, history_of
from tests.shared.fresh import run

FACTS = json.loads((Path(__file__).parent / "data" / "attention.json").read_text())
# Attention as its formula says it, with a softmax of four operations: what the recorded program computes, in our words.
ATTENTION = """
    import sys
    import ullage
    ullage.emulate("RTX 4090")
    import torch
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    q, k, v = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))

    def softmax(x):
        top = x.max(dim=-1, keepdim=True).values
        above = torch.exp(x - top)
        below = above.sum(dim=-1, keepdim=True)
        return above / below

    def attention(q, k, v):
        scores = q @ k.transpose(1, 2)
        scores = scores / 4.0
        weights = softmax(scores)
        return weights @ v

    output = attention(q, k, v)
    loss = output.sum()
    loss.backward()
    torch.cuda.memory._dump_snapshot({path!r})
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("recording") / "emulated.pickle"
    done = run(ATTENTION.format(path=str(path)))
    assert done.returncode == 0, done.stderr
    return facts_of(history_of(path))


@pytest.mark.parametrize("what", list(FACTS))
def test_the_emulated_card_does_what_a_real_one_did(what: str, emulated: dict) -> None:
    assert json.loads(json.dumps(emulated[what])) == FACTS[what]
