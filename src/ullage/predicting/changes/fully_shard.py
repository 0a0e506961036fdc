"""Shard the model over several GPUs with FSDP2. Each GPU stores a part of all parameters."""

# The model is sharded before its first forward pass, when it and its optimizers are known; the shards replace the full
# parameters in the optimizers. Optimizers have no state before their first step, so that the peak is the same as in a
# script that shards its model before it creates the optimizers.

from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

_RANKS: Final = ("2", "4", "8")
_SNIPPET: Final = """\
# torchrun --nproc-per-node {ranks} {script}
import os
import torch
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before the first allocation on the GPU
torch.distributed.init_process_group()
{blocks}fully_shard({name})  # before the optimizer gets {name}.parameters()
# and a DistributedSampler for the DataLoader, so that each GPU gets different batches"""


def _settings_for(facts: TrainingFacts) -> Applicable:
    model, loop = facts.model, facts.loop
    if model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    return Applicable.unless(
        (model.wrapper, f"the model is wrapped in {model.wrapper} already"),
        (model.is_compiled, "the model is compiled, and would have to be sharded before compilation"),
        (loop.library, f"the training loop belongs to {loop.library}, which has its own option for sharding"),
        (loop.has_scaler, "the script uses a GradScaler, and sharded gradients need a different scaler"),
        settings=_RANKS,
    )


class _Sharding:
    def __init__(self, applied: AppliedChange) -> None:
        self._applied = applied
        self._optimizers: list[Any] = []
        applied.loop.optimizer_made.append(self._optimizers.append)
        applied.loop.before_first_forward.append(self._shard)

    def _shard(self, module: Any, frame: object) -> None:
        from ullage.predicting.changes.training import model_structure

        model, wrapper, is_compiled = model_structure.unwrapped(module)
        if wrapper or is_compiled or model_structure.has_compiled_part(model):
            self._applied.refuse("the model is wrapped or compiled before its first forward pass")
            return
        whole = dict(model.named_parameters(remove_duplicate=False))
        if any(optimizer.state for optimizer in self._optimizers):
            self._applied.refuse("an optimizer has state before the first forward pass")
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = next(iter(whole.values())).device.type
        distributed: Any = self._applied.loop.torch.distributed
        if (
            not distributed.is_initialized()
        ):  # the rank joins the process group in the same way as a script that torchrun has started
            distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        mesh = init_device_mesh(device, (int(self._applied.setting),))

        for blocks in model_structure.blocks_of(model):
            for block in blocks.modules:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        parts = dict(model.named_parameters(remove_duplicate=False))
        self._hand_on({id(whole[name]): part for name, part in parts.items() if name in whole})
        self._applied.took_effect()

    def _hand_on(self, parts: dict[int, Any]) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parts.get(id(parameter), parameter) for parameter in group["params"]]


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    model = facts.model
    name = model.names[0].name if model is not None and model.names else "model"
    lists = model.block_lists if model is not None else []
    blocks = "".join(f"for block in {name}.{each.path}:\n    fully_shard(block)\n" for each in lists)
    snippet = _SNIPPET.format(ranks=setting, script="SCRIPT", blocks=blocks, name=name)
    return Recipe(
        snippet=snippet,
        why_not="a script for several processes also needs different code to start, to load data and to save",
    )


CHANGE: Final = Change(
    key="fully_shard",
    name="FSDP2",
    title_for=lambda setting: f"FSDP2 over {setting} GPUs",
    cost=ChangeCost.CARDS,
    gradients=Gradients.MORE_ITEMS,
    explanation=(
        "each GPU keeps a shard of the parameters, gradients and optimizer states, and gathers the rest of a block "
        "while it computes that block; each GPU processes its own batch, of the script's batch size"
    ),
    settings_for=_settings_for,
    install=_Sharding,
    world_size=int,
    excludes=frozenset({"step_in_backward", "fused_loss", "eight_bit"}),
    recipe_for=_recipe_for,
)
