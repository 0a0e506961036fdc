"""Which part of a training step made an allocation, as far as its stack tells.

Only names of PyTorch's own functions count, which are those of torch 2.1 to 2.15. The innermost one decides: a model
that is called within an optimizer's step (a closure) is a forward pass.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.recorded.history import Frame, RecordedStacks
from ullage.recorded.program import Column, is_one_of

Mask = npt.NDArray[np.bool_]


class Pass(IntEnum):
    """The part of a step in which a stack allocates."""

    UNKNOWN = 0
    """No stacks were recorded."""
    OUTSIDE = 1
    """The user's own code, outside of modules, backward and optimizers."""
    FORWARD = 2
    BACKWARD = 3
    RECOMPUTED = 4
    """A forward pass that checkpointing runs again, within backward."""
    OPTIMIZER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """What each stack tells: columns with a row for each stack, and a last one for blocks without any."""

    part: Column
    """A `Pass`."""
    begins_backward: Mask
    """Makes the first gradient, that of the loss."""
    is_gradient: Mask
    """PyTorch's C++ for gradients of parameters is on it."""
    is_parameter: Mask
    """Moves or makes what a module owns."""
    is_buffer: Mask
    is_workspace: Mask
    """C++ that takes a workspace is on it."""
    is_cudnn: Mask
    """A convolution or a recurrent layer is on it, which cuDNN computes in a workspace."""
    is_generated: Mask
    """Code that torch.compile has made is on it."""
    in_init: Mask
    """An object is made: a function called `__init__` is on it."""
    is_state: Mask
    """Makes an optimizer's state, as torch.optim does it: all of it before the first update."""
    is_update: Mask
    """Computes an update, as torch.optim does it."""
    has_no_gradients: Mask
    """A function that is decorated with torch.no_grad or inference_mode is on it."""
    in_optimizer: Mask
    """An optimizer's step is on it, however far out."""
    is_named: Mask
    """A frame names the part; else it is told by there being no frame of Python."""


_MODULE: Final = re.compile(r"[\\/]torch[\\/]nn[\\/]modules[\\/]module\.py$")
_OPTIMIZER: Final = re.compile(r"[\\/]torch[\\/]optim[\\/]optimizer\.py$")
_OPTIMIZERS: Final = re.compile(r"[\\/]optim\w*[\\/]")
_CHECKPOINT: Final = re.compile(r"[\\/]torch[\\/]utils[\\/]checkpoint\.py$")
_FUNCTION: Final = re.compile(r"[\\/]torch[\\/]autograd[\\/]function\.py$")
_AUTOGRAD: Final = re.compile(r"[\\/]torch[\\/]autograd[\\/](__init__|graph)\.py$")
_LAYERS: Final = re.compile(r"[\\/]torch[\\/]nn[\\/](modules[\\/]\w+|parameter|init)\.py$")
_CONVOLUTION: Final = re.compile(r"^_conv_forward$|^conv\dd$|convolution", re.IGNORECASE)
_UPDATES: Final = re.compile(r"^_(multi_tensor|single_tensor|fused)_")
_CONTEXT: Final = re.compile(r"[\\/]torch[\\/]utils[\\/]_contextlib\.py$")
_CPP: Final = re.compile(r"\.(cpp|cc|c|h|cu|cuh|so|o|S)$|^$|^\?\?$|\.so[.\d]*$")
_ENGINE: Final = re.compile(r"\bautograd::(Engine|python::PythonEngine)::|Backward\d*(<.*>)?::apply\b|AccumulateGrad\b")
_GRADIENT: Final = re.compile(r"\bAccumulateGrad(::|_)")
_WORKSPACE: Final = re.compile(
    r"\b(?:getCurrentCUDABlas|cublasLt|getCUDABlasLt|getChosenWorkspace|getNewWorkspace|run_conv_plan|run_single_conv)"
    r"|\bWorkspace::Workspace\b"
)
_RECURRENT: Final = re.compile(r"[\\/]torch[\\/]nn[\\/]modules[\\/]rnn\.py$")
_GENERATED: Final = re.compile(r"^<eval_with_key>|[\\/]\w\w[\\/]c\w{40,}\.py$")
_STARTS: Final = frozenset(("<module>", "_bootstrap", "_bootstrap_inner", "_run_module_as_main"))
"""Functions with which a thread of Python's own begins; those of the autograd engine begin with others."""
_BUFFER_LINES: Final = range(90, 130)
_PARAMETER_LINES: Final = range(15, 60)
"""The distances in lines between the call of itself in `Module._apply` and where it moves a parameter, and a buffer."""

# Bits of a frame.
_CALL, _STEP, _RUN, _AGAIN, _BEGIN, _ACCUMULATE = (1 << bit for bit in range(6))
_TAKE, _CUDNN, _MAKE, _BUFFER, _PYTHON, _GRAPH = (1 << bit for bit in range(6, 12))
_INIT, _STATE, _UPDATE, _NO_GRADIENTS = (1 << bit for bit in range(12, 16))
_PARTS: Final = ((_CALL, Pass.FORWARD), (_STEP, Pass.OPTIMIZER), (_RUN, Pass.BACKWARD), (_AGAIN, Pass.RECOMPUTED))


def makers_of(stacks: RecordedStacks) -> Makers:
    """Read every stack once."""
    table = stacks.table
    codes = np.array([_code_of(frame) for frame in table], np.int64).reshape(len(table))
    applied = _applied_codes(table)
    for row, code in applied.items():
        codes[row] |= code
    count = len(stacks.starts) - 1
    frames = codes[stacks.frames]
    has = _any_of(stacks, frames, count)
    # Innermost first: of the marks that name a part, the first one in the stack decides.
    part = np.full(count, Pass.OUTSIDE, np.int64)
    first = _first_of(stacks, frames, count, sum(bit for bit, _ in _PARTS))
    for bit, kind in _PARTS:
        part[(first & bit) != 0] = kind
    is_named = first != 0
    threads = _of_other_threads(stacks, table, count) | ((has & _RUN) != 0)
    # Within backward a forward pass is one that runs again, or code that torch.compile has made for backward.
    again = (part == Pass.FORWARD) & ((has & _AGAIN) != 0)
    part[threads & is_one_of(part, (Pass.OUTSIDE, Pass.FORWARD))] = Pass.BACKWARD
    part[again] = Pass.RECOMPUTED
    has_python = bool((has & _PYTHON).any())
    nothing = Pass.BACKWARD if has_python else Pass.UNKNOWN  # Python's frames are recorded, and here is none
    part[((has & _PYTHON) == 0) & (part == Pass.OUTSIDE)] = nothing
    return Makers(
        part=np.append(part, nothing),
        begins_backward=_flag(has, _BEGIN),
        is_gradient=_flag(has, _ACCUMULATE),
        is_parameter=_flag(has, _MAKE),
        is_buffer=_flag(has, _BUFFER),
        is_workspace=_flag(has, _TAKE),
        is_cudnn=_flag(has, _CUDNN),
        is_generated=_flag(has, _GRAPH),
        in_init=_flag(has, _INIT),
        is_state=_flag(has, _STATE),
        is_update=_flag(has, _UPDATE) & ~_flag(has, _STATE),
        has_no_gradients=_flag(has, _NO_GRADIENTS),
        in_optimizer=_flag(has, _STEP),
        is_named=np.append(is_named, False),
    )


def _flag(has: Column, bit: int) -> Mask:
    return np.append((has & bit) != 0, False)


def _code_of(frame: Frame) -> int:
    name, file = frame.name, frame.file
    if _CPP.search(file):
        code = _RUN if _ENGINE.search(name) else 0
        code |= _ACCUMULATE if _GRADIENT.search(name) else 0
        return code | (_TAKE if _WORKSPACE.search(name) else 0) | (_CUDNN if _CONVOLUTION.search(name) else 0)
    is_cudnn = _CONVOLUTION.search(name) or (name == "forward" and _RECURRENT.search(file))
    code = _PYTHON | (_CUDNN if is_cudnn else 0) | (_GRAPH if _GENERATED.search(file) else 0)
    code |= _INIT if name == "__init__" else 0
    if name == "_init_group" and _OPTIMIZERS.search(file):
        code |= _STATE
    elif _UPDATES.search(name) and _OPTIMIZERS.search(file) and not file.endswith("sgd.py"):  # which copies gradients
        code |= _UPDATE
    elif name == "decorate_context" and _CONTEXT.search(file):
        code |= _NO_GRADIENTS
    if name == "forward" or (name in ("_call_impl", "_wrapped_call_impl") and _MODULE.search(file)):
        code |= _CALL
    elif (name.endswith("wrapper") and _OPTIMIZER.search(file)) or (name == "step" and _OPTIMIZERS.search(file)):
        code |= _STEP
    elif name in ("backward", "unpack_hook", "recompute_fn") and _CHECKPOINT.search(file):
        code |= _AGAIN
    elif name == "_engine_run_backward" and _AUTOGRAD.search(file):
        code |= _RUN
    elif name == "_make_grads" and _AUTOGRAD.search(file):
        code |= _BEGIN
    elif (
        name in ("__init__", "__deepcopy__", "__new__", "reset_parameters", "flatten_parameters")
        and _LAYERS.search(file)
    ) or (name == "load_state_dict" and _MODULE.search(file)):
        code |= _MAKE
    return code


def _applied_codes(table: tuple[Frame, ...]) -> dict[int, int]:
    """Tell in `Module._apply` the lines that move parameters from those that move buffers.

    The first line of it that is recorded is nearly always its call of itself for the modules within.
    """
    rows = {row: frame.line for row, frame in enumerate(table) if frame.name == "_apply" and _MODULE.search(frame.file)}
    if not rows:
        return {}
    first = min(rows.values())
    found = {}
    for row, line in rows.items():
        # Without a call of itself (a module without others) the first one moves a parameter.
        alone = len(set(rows.values())) == 1
        if alone or line - first in _PARAMETER_LINES:
            found[row] = _MAKE
        elif line - first in _BUFFER_LINES or (line - first) in range(60, 90):
            found[row] = _BUFFER
    return found


def _any_of(stacks: RecordedStacks, frames: Column, count: int) -> Column:
    """The bits of all frames of each stack."""
    found = np.zeros(count, np.int64)
    filled = np.flatnonzero(np.diff(stacks.starts) > 0)
    if len(filled):
        found[filled] = np.bitwise_or.reduceat(frames, stacks.starts[filled])
    return found


def _first_of(stacks: RecordedStacks, frames: Column, count: int, bits: int) -> Column:
    """The bits of the innermost frame of each stack that has one of `bits`; 0 where none has."""
    found = np.zeros(count, np.int64)
    marked = np.flatnonzero(frames & bits)
    of_stack = np.searchsorted(stacks.starts, marked, side="right") - 1
    stack, where = np.unique(of_stack, return_index=True)
    found[stack] = frames[marked[where]] & bits
    return found


def _of_other_threads(stacks: RecordedStacks, table: tuple[Frame, ...], count: int) -> Mask:
    """Which stacks have Python's frames and do not begin as a script or a thread of Python's does.

    The engine's threads begin with a hook, or with the `backward` of a function of the user's.
    """
    begins = np.array([frame.name.rpartition(".")[2] in _STARTS for frame in table], bool)
    python = np.array([not _CPP.search(frame.file) for frame in table], bool)
    rows = np.flatnonzero(python[stacks.frames])
    of_stack = np.searchsorted(stacks.starts, rows, side="right") - 1
    last = np.full(count, -1, np.int64)
    last[of_stack] = rows  # the outermost of Python's frames: the last one written
    known = last >= 0
    ordinary = np.zeros(count, bool)
    ordinary[known] = begins[stacks.frames[last[known]]]
    if not ordinary.any():
        return np.zeros(count, bool)
    return known & ~ordinary
