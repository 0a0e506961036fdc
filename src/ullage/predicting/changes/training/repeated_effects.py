"""Find effects of a block's forward pass that differ, or happen again, if checkpointing runs the pass a second time."""

# PyTorch's `checkpoint` (torch/utils/checkpoint.py, torch 2.11) repeats the forward pass with the random state of the
# CPU and of the GPUs of its positional tensor arguments. It repeats everything else as it is at that time.

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ullage.training.ownership.safe_inspection import instance_dict
from ullage.training.ownership.storage import tensors_in


def tracks_statistics(part: nn.Module) -> bool:
    """Return whether the forward pass of a module updates running statistics, as BatchNorm in training mode does."""
    return part.training and bool(getattr(part, "track_running_stats", False))


class RepeatedEffects:
    """The state that the forward pass of a block may change. Create it right before the forward pass."""

    def __init__(self, block: nn.Module, positional: tuple[Any, ...]) -> None:
        self._block = block
        self._has_gpu_argument = any(each.is_cuda for each in tensors_in(positional))
        self._buffers = _buffers_of(block)
        self._generators = list(_generators_in(block))
        self._before = self._random_states()

    def found(self) -> str:
        """Return why a second forward pass is not the same, as one sentence without a full stop, or an empty text.

        Running statistics do not count, because the recomputation can restore them. Call this right after the forward
        pass.
        """
        now = dict(self._block.named_buffers())
        for name, (buffer, version) in self._buffers.items():
            if name in now and (now[name] is not buffer or buffer._version != version):
                return f"the forward pass of a block changes its buffer {name.rpartition('.')[2]}"
        for what, state in self._random_states().items():
            if state != self._before.get(what, state):
                return f"the forward pass of a block draws random numbers from {what}"
        return ""

    def _random_states(self) -> dict[str, Any]:
        found: dict[str, Any] = {"Python's random module": random.getstate()}
        if "numpy.random" in sys.modules:
            state = sys.modules["numpy.random"].get_state(legacy=False)["state"]
            found["numpy.random"] = [each.tobytes() if hasattr(each, "tobytes") else each for each in state.values()]
        for number, each in enumerate(self._generators):
            found["a torch.Generator" + f" ({number + 1})" * bool(number)] = each.get_state().tolist()
        is_known = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
        if not self._has_gpu_argument and is_known:
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            found["the GPU's generator, and none of its positional arguments is on the GPU"] = generator.get_offset()
        return found


def _buffers_of(block: nn.Module) -> dict[str, tuple[Tensor, int]]:
    own = {id(each) for part in block.modules() if tracks_statistics(part) for each in part.buffers(recurse=False)}
    return {name: (each, each._version) for name, each in block.named_buffers() if id(each) not in own}


def _generators_in(block: nn.Module) -> Iterator[torch.Generator]:
    for part in block.modules():
        for value in (instance_dict(part) or {}).values():
            if isinstance(value, torch.Generator):
                yield value
