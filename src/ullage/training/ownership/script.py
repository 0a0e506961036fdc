"""The tensors of TorchScript modules and functions, which are held in C++ without a Python reference."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

SCRIPTS: Final = (torch._C.ScriptModule, torch._C.ScriptFunction)


def tensors_of_script(one: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the kind of each tensor (parameter, buffer, constant, example), its name, and the tensor."""
    if isinstance(one, torch._C.ScriptFunction):
        yield from _constants_of(one.graph)
        return
    waiting = [("", one)]
    while waiting:
        prefix, module = waiting.pop()
        parameters: Any = torch._C.ParameterDict(module)  # torch's types leave their items() out
        buffers: Any = torch._C.BufferDict(module)
        for name, tensor in parameters.items():
            yield "parameter", prefix + name, tensor
        for name, tensor in buffers.items():
            yield "buffer", prefix + name, tensor
        for name in module._method_names():
            yield from _constants_of(module._get_method(name).graph)
        for _, examples in module._retrieve_traced_inputs().items():  # those that it was traced with
            for example in examples:
                if isinstance(example, Tensor):
                    yield "example", "example", example
        waiting += [(f"{prefix}{name}.", child) for name, child in torch._C.ModuleDict(module).items()]


def _constants_of(graph: Any) -> Iterator[tuple[str, str, Tensor]]:
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
                yield "constant", "constant", node.t("value")
            blocks += node.blocks()
