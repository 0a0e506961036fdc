"""Record when a script saves, loads, evaluates or generates, and when it calls modules.

The record stores numbers in arrays and creates no other Python objects. More objects would trigger Python's garbage
collection at other times than in a run without ullage.
"""

import functools
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from ullage.gpu.tracing.journal import Journal
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.predicting.prediction.phases.spans import Emptied, Forwards, Marks, NotedCall, NotedCalls

_OPEN: Final = -2  # -1 means before the first entry of the journal
LIBRARIES: Final[tuple[tuple[str, str, NotedCall], ...]] = (
    ("torch.distributed.checkpoint.state_dict_saver", "save async_save", NotedCall.WRITE),
    ("torch.distributed.checkpoint.state_dict_loader", "load", NotedCall.READ),
    ("torch.distributed.checkpoint.state_dict", "get_model_state_dict get_optimizer_state_dict", NotedCall.STATE),
    ("torch.distributed.checkpoint.state_dict", "set_model_state_dict", NotedCall.LOAD),
    ("torch.distributed.checkpoint.state_dict", "set_optimizer_state_dict set_state_dict", NotedCall.LOAD_OPTIMIZER),
    ("torch.distributed.checkpoint.state_dict", "_init_optim_state", NotedCall.CREATE_STATE),
    ("safetensors.torch", "save_file save_model", NotedCall.WRITE),
    ("safetensors.torch", "load_file load_model", NotedCall.READ),
    ("transformers.trainer", "Trainer.evaluate Trainer.predict", NotedCall.EVALUATE),
    ("transformers.trainer", "Trainer._save_checkpoint Trainer.save_model", NotedCall.SAVE),
    ("transformers.trainer", "Trainer._load_from_checkpoint Trainer._load_optimizer_and_scheduler", NotedCall.RESTORE),
    ("transformers.modeling_utils", "PreTrainedModel.save_pretrained", NotedCall.SAVE),
    ("transformers.generation.utils", "GenerationMixin.generate", NotedCall.GENERATE),
    *(
        (f"{package}.{module}", functions, kind)
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module, functions, kind in (
            ("loops.evaluation_loop", "_EvaluationLoop.run", NotedCall.EVALUATE),
            ("trainer.trainer", "Trainer.save_checkpoint", NotedCall.SAVE),
            (
                "trainer.connectors.checkpoint_connector",
                "_CheckpointConnector._restore_modules_and_callbacks _CheckpointConnector.restore_training_state",
                NotedCall.RESTORE,
            ),
        )
    ),
    ("accelerate.accelerator", "Accelerator.save_state Accelerator.save_model", NotedCall.SAVE),
    ("accelerate.accelerator", "Accelerator.load_state", NotedCall.RESTORE),
    ("ultralytics.engine.validator", "BaseValidator.__call__", NotedCall.EVALUATE),
)
"""The library functions that ullage observes. Each entry has the module, the function, and the kind of call."""
LOOPS: Final = {
    "transformers.trainer": ("Trainer", "_inner_training_loop"),
    "lightning.pytorch.loops.training_epoch_loop": ("_TrainingEpochLoop", "advance"),
    "pytorch_lightning.loops.training_epoch_loop": ("_TrainingEpochLoop", "advance"),
}
"""The training loops of libraries. Each module name is mapped to a class and a method."""


class EvaluationDue:
    """A flag that is true if a library's training loop evaluates right after the current optimizer step.

    The loop object is kept as a weak reference, so that it does not keep the script's tensors alive.
    """

    def __init__(self) -> None:
        self._loop: weakref.ref[Any] | None = None
        self._fetcher: weakref.ref[Any] | None = None

    def watch(self, module: ModuleType) -> Callable[[], None] | None:
        """Wrap a library's training loop. Return a function that removes the wrapper."""
        kind, name = LOOPS[module.__name__]
        owner = vars(module).get(kind)
        original = vars(owner).get(name) if owner is not None else None
        if original is None:
            return None

        @functools.wraps(original)
        def run(loop: Any, *arguments: Any, **keywords: Any) -> Any:
            self._loop = weakref.ref(loop)
            self._fetcher = weakref.ref(arguments[0]) if name == "advance" and arguments else None
            return original(loop, *arguments, **keywords)

        setattr(owner, name, run)
        return lambda: setattr(owner, name, original)

    def __bool__(self) -> bool:
        loop = self._loop() if self._loop is not None else None
        fetcher = self._fetcher() if self._fetcher is not None else None
        if loop is None:
            return False
        try:
            return bool(loop._should_check_val_fx(fetcher) if fetcher is not None else _of_transformers(loop))
        except Exception:  # Another version of the library does not provide this.
            return False


def _of_transformers(trainer: Any) -> bool:
    arguments, state = trainer.args, trainer.state
    step = state.global_step + 1  # transformers counts the step after the optimizer's own step
    match str(getattr(arguments.eval_strategy, "value", arguments.eval_strategy)):
        case "steps":
            return bool(step % state.eval_steps == 0 and arguments.eval_delay <= step)
        case "epoch":
            each = state.max_steps / arguments.num_train_epochs if arguments.max_steps <= 0 else 0
            return bool(each) and step % each == 0
    return False


class PhaseHooks:
    """Observe evaluation, saving, loading and calls of `generate` through hooks."""

    def __init__(self, journal: Journal) -> None:
        self._length = journal.length
        self._main_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._in_state_dict = threading.local()
        self._kinds, self._others = array("b"), array("b")
        self._begins, self._ends = array("q"), array("q")
        self._forward_begins, self._forward_ends = array("q"), array("q")
        self._with_grad, self._training, self._trained = array("b"), array("b"), array("b")
        self._emptied_indices, self._emptied_devices, self._emptied_reserved = array("q"), array("q"), array("q")
        self.evaluation_is_due = EvaluationDue()
        self._undo: list[Callable[[], None]] = []
        self._watches: list[ImportWatch] = []

    def install(self) -> None:
        """Install the hooks. Libraries that are not imported yet get their hooks when they are imported."""
        for owner in (torch, torch.serialization):
            self._wrap(owner, "save", NotedCall.WRITE)
            self._wrap(owner, "load", NotedCall.READ)
        self._wrap(nn.Module, "state_dict", NotedCall.STATE)
        self._wrap(nn.Module, "load_state_dict", NotedCall.LOAD)
        self._wrap(torch.optim.Optimizer, "state_dict", NotedCall.STATE)
        self._wrap(torch.optim.Optimizer, "load_state_dict", NotedCall.LOAD_OPTIMIZER)
        for name in ("_cuda_emptyCache", "_accelerator_emptyCache"):
            if hasattr(torch._C, name):
                self._watch_emptying(name)
        for module in dict.fromkeys([*(module for module, _, _ in LIBRARIES), *LOOPS]):
            self._wait_for(module)

    def remove(self) -> None:
        """Remove all hooks."""
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        for watch in self._watches:
            if watch in sys.meta_path:
                sys.meta_path.remove(watch)

    # ---- module calls

    def enter_forward(self, *, is_training: bool, is_trained: bool) -> None:
        """Record that the script has called a module from outside of any other module.

        Args:
            is_training: whether the module is in training mode.
            is_trained: whether one of the module's parameters requires a gradient.
        """
        self._with_grad.append(torch.is_grad_enabled())
        self._training.append(is_training)
        self._trained.append(is_trained)
        self._forward_ends.append(_OPEN)
        self._forward_begins.append(self._length() - 1)

    def leave_forward(self) -> None:
        """Record that the outermost module call has returned."""
        self._forward_ends[-1] = self._length() - 1

    # ---- reading the notes

    def is_in(self, kind: NotedCall) -> bool:
        """Return whether a call of this kind has begun and has not returned."""
        return any(each == kind and end == _OPEN for each, end in zip(self._kinds, self._ends, strict=True))

    def marks(self, backward_starts: Sequence[int], step_ends: Sequence[int]) -> Marks:
        """Return all recorded calls, together with the given starts of backward passes and ends of optimizer steps."""
        return Marks(
            forwards=Forwards(
                begins=tuple(self._forward_begins),
                ends=tuple(self._closed(self._forward_ends)),
                with_grad=tuple(map(bool, self._with_grad)),
                training=tuple(map(bool, self._training)),
                trained=tuple(map(bool, self._trained)),
            ),
            calls=NotedCalls(
                kinds=tuple(map(NotedCall, self._kinds)),
                begins=tuple(self._begins),
                ends=tuple(self._closed(self._ends)),
                of_other_threads=tuple(map(bool, self._others)),
            ),
            emptied=Emptied(
                indices=tuple(self._emptied_indices),
                devices=tuple(self._emptied_devices),
                reserved_bytes=tuple(self._emptied_reserved),
            ),
            backward_starts=tuple(backward_starts),
            step_ends=tuple(step_ends),
        )

    def _closed(self, ends: "array[int]") -> list[int]:
        now = self._length() - 1
        return [now if end == _OPEN else end for end in ends]

    # ---- hooks

    def _begin(self, kind: NotedCall) -> int:
        with self._lock:
            self._kinds.append(kind)
            self._others.append(threading.get_ident() != self._main_thread)
            self._begins.append(self._length() - 1)
            self._ends.append(_OPEN)
            return len(self._ends) - 1

    def _wrap(self, owner: Any, name: str, kind: NotedCall) -> None:
        original = vars(owner)[name]
        if not callable(original):  # a static method, or not a function any more
            return
        setattr(owner, name, self._around(original, kind))
        self._undo.append(lambda: setattr(owner, name, original))

    # A module calls `state_dict` of its submodules; only the outermost call counts.
    def _around(self, original: Callable[..., Any], kind: NotedCall) -> Callable[..., Any]:
        inside, is_state_dict = self._in_state_dict, kind is NotedCall.STATE

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            if is_state_dict:
                if getattr(inside, "value", False):
                    return original(*arguments, **keywords)
                inside.value = True
            position = self._begin(kind)
            try:
                return original(*arguments, **keywords)
            finally:
                self._ends[position] = self._length() - 1
                if is_state_dict:
                    inside.value = False

        return wrapper

    def _watch_emptying(self, name: str) -> None:
        binding: Any = torch._C
        original = getattr(binding, name)

        def empty(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            index = self._length() - 1
            for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
                self._emptied_devices.append(device)
                self._emptied_reserved.append(binding._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"])
                self._emptied_indices.append(index)
            return result

        setattr(binding, name, empty)
        self._undo.append(lambda: setattr(binding, name, original))

    # ---- libraries

    def _wait_for(self, name: str) -> None:
        if name in sys.modules:
            self._wrap_library(sys.modules[name])
            return
        watch = ImportWatch(name, before=lambda: None, after=self._wrap_library)
        self._watches.append(watch)
        watch.install()

    def _wrap_library(self, module: ModuleType) -> None:
        if module.__name__ in LOOPS and (undo := self.evaluation_is_due.watch(module)) is not None:
            self._undo.append(undo)
        for name, functions, kind in LIBRARIES:
            if name != module.__name__:
                continue
            for function in functions.split():
                holder, _, attribute = function.rpartition(".")
                owner: Any = vars(module).get(holder) if holder else module
                if owner is not None and attribute in vars(owner):  # Other versions of the library may not have it.
                    self._wrap(owner, attribute, kind)
