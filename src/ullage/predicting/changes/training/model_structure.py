"""Find a model inside wrappers such as DDP, and find its repeated blocks, such as transformer layers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ullage.predicting.changes.training.facts import LinearHead

_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "OptimizedModule"})
_LEAST_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """A list of repeated blocks, and the path of this list in the model, such as "transformer.h"."""

    path: str
    modules: list[nn.Module]


def unwrapped(module: nn.Module) -> tuple[nn.Module, str, bool]:
    """Return the model without its wrappers, the class name of the outermost wrapper, and whether the model is
    compiled.
    """
    wrapper, is_compiled = "", False
    while type(module).__name__ in _WRAPPERS:
        names = ("_orig_mod", "module", "_fsdp_wrapped_module")
        inner = next((module._modules[name] for name in names if module._modules.get(name) is not None), None)
        if inner is None:
            break
        if type(module).__name__ == "OptimizedModule":
            is_compiled = True
        else:
            wrapper = wrapper or type(module).__name__
        module = inner
    if not wrapper and _is_a(module, "FSDPModule"):
        wrapper = "FSDPModule"
    return module, wrapper, is_compiled


def has_compiled_part(model: nn.Module) -> bool:
    """Return whether torch.compile runs the model or a part of it."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _is_a(module: nn.Module, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(module).__mro__)


def transformers_in(model: nn.Module) -> tuple[str | None, Any]:
    """Return the outermost transformers model and its path, or None for both if the model contains none."""
    found = ((path, module) for path, module in model.named_modules() if _is_a(module, "PreTrainedModel"))
    return next(found, (None, None))


def has_switch(block: nn.Module) -> bool:
    """Return whether transformers can turn on activation checkpointing for this block alone."""
    return _is_a(block, "GradientCheckpointingLayer")


def blocks_of(model: nn.Module) -> list[Blocks]:
    """Return the model's lists of repeated blocks that are trained, in the order of registration.

    If the items of a list contain lists of blocks themselves, the inner lists are returned. Repetition inside a block,
    such as experts or heads, does not count.
    """
    return list(_below(model, ""))


def _below(module: nn.Module, path: str) -> Iterator[Blocks]:
    children = _children(module)
    if isinstance(module, nn.ModuleList | nn.Sequential) and _repeat(children):
        inner = [each for name, child in children for each in _lists_in(child, _joined(path, name))]
        yield from inner or [Blocks(path, [child for _, child in children])]
        return
    for name, child in children:
        yield from _below(child, _joined(path, name))


def _lists_in(stage: nn.Module, path: str) -> Iterator[Blocks]:
    for name, child in _children(stage):
        if isinstance(child, nn.ModuleList | nn.Sequential) and _repeat(_children(child)):
            yield Blocks(_joined(path, name), [block for _, block in _children(child)])


def _repeat(children: list[tuple[str, nn.Module]]) -> bool:
    if len(children) < _LEAST_BLOCKS or len({type(child) for _, child in children}) > 1:
        return False
    first = children[0][1]
    if isinstance(first, nn.ModuleList | nn.ModuleDict) or not first._modules:
        return False
    return any(parameter.requires_grad for _, child in children for parameter in child.parameters())


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def parameter_bytes(module: nn.Module) -> int:
    """Return the size of a module's parameters in bytes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def dtypes_of(module: nn.Module) -> list[str]:
    """Return the data types of a module's parameters, the type with the most bytes first."""
    found: Counter[str] = Counter()
    for parameter in module.parameters():
        found[str(parameter.dtype).removeprefix("torch.")] += parameter.numel() * parameter.element_size()
    return [name for name, _ in found.most_common()]


def has_wide_adapters(model: nn.Module) -> bool:
    """Return whether a model has trained layers of PEFT in float32, and frozen weights mostly of 16 bits."""
    frozen: Counter[int] = Counter()
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            frozen[parameter.element_size()] += parameter.numel()
    is_narrow = bool(frozen) and frozen.most_common(1)[0][0] == 2
    layers = (each for each in model.modules() if type(each).__module__.startswith("peft.tuners."))
    return is_narrow and any(
        parameter.requires_grad and parameter.element_size() == 4 for each in layers for parameter in each.parameters()
    )


def batch_norms_of(model: nn.Module) -> int:
    """Return the number of modules that normalise with statistics of the whole batch, such as BatchNorm."""
    norm = nn.modules.batchnorm._BatchNorm
    return sum(isinstance(module, norm) and module.training for module in model.modules())


def heads_of(model: nn.Module) -> list[LinearHead]:
    """Return the linear layers for which PyTorch's `linear_cross_entropy` may save memory. Torch 2.13 introduced it."""
    if not hasattr(nn, "LinearCrossEntropyOptions"):
        return []
    return [
        LinearHead(path=path, width=module.in_features, classes=module.out_features)
        for path, module in model.named_modules()
        if type(module) is nn.Linear and module.out_features > module.in_features
    ]
