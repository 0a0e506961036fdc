"""FSDP2 from outside: the bytes of a script that shards its model itself, and the gradients of one process."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.predicting.changes.runs import ON_CPU, bytes_of, difference, facts_of, numbers_in, peaks, place, told_on_cpu
from ullage.predicting.changes.fully_shard import CHANGE
from ullage.predicting.changes.training.facts import BlockList, ModelFacts, NamedObject, TrainingFacts

GPT = Path(__file__).parent / "scripts" / "gpt.py"
MADE = "        model = GPT()\n"
BY_HAND = """        model = GPT()
    import os
    from torch.distributed.fsdp import fully_shard
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
"""
VALUES = """
import torch
from torch import nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 33), nn.Linear(33, 16)
    def forward(self, x):
        return x + self.second(self.first(x).tanh())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
model = Net().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    tokens = torch.randint(0, 11, (4, 6)).to("cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
whole = lambda one: one.full_tensor() if hasattr(one, "full_tensor") else one
told = [whole(one).detach() for p in model.parameters() for one in (p, p.grad)]
"""


@pytest.mark.parametrize("ranks", [2, 8])
def test_it_needs_what_a_script_needs_that_shards_its_model(tmp_path: Path, ranks: int) -> None:
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(GPT.read_text().replace(MADE, BY_HAND))
    changed = peaks(GPT, f"fully_shard={ranks}", world_size=ranks)
    assert changed.changes_made == {f"fully_shard={ranks}": 1}, changed.changes_refused
    assert bytes_of(changed) == bytes_of(peaks(by_hand, world_size=ranks))
    assert changed.peak_allocated_bytes < peaks(GPT).peak_allocated_bytes


def test_the_gradients_and_steps_of_two_real_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    """Both ranks have the batch of the one process, so that the mean over both is its gradient."""
    script = tmp_path / "values.py"
    script.write_text(VALUES)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ON_CPU, json.dumps(["fully_shard=2"]), script, tmp_path / f"{rank}.npz"],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=900) for rank in ranks] == [0, 0]
    alone = told_on_cpu(script)
    for rank in range(2):
        assert difference(alone, numbers_in(tmp_path / f"{rank}.npz")) < 1e-12


def known(wrapper: str = "", *, is_compiled: bool = False, **loop: Any) -> TrainingFacts:
    model = ModelFacts(
        kind="GPT",
        library="",
        names=[NamedObject(name="net", place=place(GPT, "model = GPT()", "main"))],
        block_lists=[BlockList(path="blocks", kind="Block", count=4, parameter_bytes=1)],
        parameter_bytes=1,
        dtypes=["float32"],
        wrapper=wrapper,
        is_compiled=is_compiled,
    )
    return replace(facts_of(GPT, **loop), model=model)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (known("DistributedDataParallel"), "in DistributedDataParallel already"),
        (known(is_compiled=True), "compiled"),
        (known(library="transformers"), "belongs to transformers"),
        (known(has_scaler=True), "GradScaler"),
        (facts_of(GPT), "no module"),
    ],
)
def test_where_it_is_not_made(facts: TrainingFacts, said: str) -> None:
    assert said in CHANGE.settings_for(facts).why_not


def test_what_to_write_names_the_model_and_its_blocks() -> None:
    recipe = CHANGE.recipe_for(known(), "4")
    assert not recipe.edits
    assert "--nproc-per-node 4" in recipe.snippet
    assert "for block in net.blocks:\n    fully_shard(block)\nfully_shard(net)" in recipe.snippet
    compile(recipe.snippet, "snippet", "exec")
