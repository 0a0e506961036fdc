"""A ready-made map says what the real library reads, and lays the ranks as it does."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.forked import client
from ullage.predicting.layouts.layout import CardLayout, LayoutSpace
from ullage.predicting.layouts.option_map import map_of, put

# One rank of many, whose others torch's fake process group stands for, makes the library's own mesh.
MESH = """
import json, os, sys
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(sys.argv[1]))
"""
ACCELERATE = """
from accelerate.parallelism_config import ParallelismConfig
config = ParallelismConfig()
mesh = config.build_device_mesh("cpu")
sizes = {name: getattr(config, f"{name}_size") for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp")}
print(json.dumps([sizes, *([list(mesh.mesh_dim_names), list(mesh.mesh.shape)] if mesh is not None else [None, None])]))
"""
LIGHTNING = """
from lightning.fabric.strategies.model_parallel import _setup_device_mesh
from lightning.pytorch.strategies import ModelParallelStrategy
options = {words.partition("=")[0].rpartition(".")[2]: int(words.partition("=")[2]) for words in sys.argv[2:]}
strategy = ModelParallelStrategy(**options)
mesh = _setup_device_mesh(strategy._data_parallel_size, strategy._tensor_parallel_size, int(sys.argv[1]),
    torch.device("cpu"))
print(json.dumps([list(mesh.mesh_dim_names), list(mesh.mesh.shape)]))
"""


def told(code: str, words: list[str], tmp_path: Path, **variables: str) -> list[object]:
    """Return what a program prints as JSON."""
    script = tmp_path / "program.py"
    script.write_text(MESH + code)
    environment = os.environ | client.COMPILER_LATER | {"ACCELERATE_USE_CPU": "1"} | variables
    done = client.run([sys.executable, script, *words], env=environment)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 4, "tp": 2},
        {"dp_replicate": 2, "dp_shard": 4, "tp": 2},
        {"dp_replicate": 2, "dp_shard": 2, "cp": 4},
        {"dp_shard": 2, "sp": 4},
    ],
    ids=lambda sizes: "-".join(sizes),
)
def test_accelerate_reads_the_sizes_and_lays_the_ranks_so(sizes: dict[str, int], tmp_path: Path) -> None:
    cards = 1
    for size in sizes.values():
        cards *= size
    option_map = map_of("accelerate", [], LayoutSpace(axes=tuple(sizes), cards=cards, most={}))
    _, variables = put(option_map, CardLayout(sizes=tuple(sizes.items())), ())
    if "cp" in sizes:
        variables = {**variables, "PARALLELISM_CONFIG_CP_BACKEND": "torch"}
    read, names, shape = told(ACCELERATE, [str(cards)], tmp_path, **variables)
    named = {{"dp": "dp_shard"}.get(name, name): size for name, size in sizes.items()}
    assert read == {name: named.get(name, 1) for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp")}
    order = [{"dp": "dp_shard"}.get(name, name) for name in option_map.order if name in sizes]
    # With sp the ranks are laid by DeepSpeed, and accelerate makes no mesh.
    assert (names, shape) == ((None, None) if "sp" in sizes else (order, [named[name] for name in order]))


def test_lightning_takes_the_sizes_and_lays_the_ranks_so(tmp_path: Path) -> None:
    sizes = {"dp": 4, "tp": 2}
    option_map = map_of("lightning", [], LayoutSpace(axes=tuple(sizes), cards=8, most={}))
    words, variables = put(option_map, CardLayout(sizes=tuple(sizes.items())), ())
    assert variables == {}
    joined = [f"{option}={value}" for option, value in zip(words[::2], words[1::2], strict=True)]
    assert all(word.startswith("--trainer.strategy.init_args.") for word in joined)
    names, shape = told(LIGHTNING, ["8", *joined], tmp_path)
    assert option_map.order == ("dp", "tp")
    assert (names, shape) == (["data_parallel", "tensor_parallel"], [4, 2])
