"""Whether a library's training loop evaluates at once after the optimizer step that has just ended.

Only the library knows; a loop of the user's own tells it by what runs next. A loop is known by a weak reference: a
frame's local variables, once read, would keep the script's tensors alive.
"""

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

LOOPS: Final = {
    "transformers.trainer": ("Trainer", "_inner_training_loop"),
    "lightning.pytorch.loops.training_epoch_loop": ("_TrainingEpochLoop", "advance"),
    "pytorch_lightning.loops.training_epoch_loop": ("_TrainingEpochLoop", "advance"),
}
"""The method that runs steps, by its module."""


class EvaluationDue:
    """Knows the training loop of a library that runs, if there is one."""

    def __init__(self) -> None:
        self._loop: weakref.ref[Any] | None = None
        self._fetcher: weakref.ref[Any] | None = None

    def watch(self, module: ModuleType) -> Callable[[], None] | None:
        """Wrap the method that runs a library's steps; returns what undoes that."""
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
        """Whether the loop will evaluate next; False where that cannot be told."""
        loop = self._loop() if self._loop is not None else None
        fetcher = self._fetcher() if self._fetcher is not None else None
        if loop is None:
            return False
        try:
            return bool(loop._should_check_val_fx(fetcher) if fetcher is not None else _of_transformers(loop))
        except Exception:  # another version of the library: it does not say
            return False


def _of_transformers(trainer: Any) -> bool:
    arguments, state = trainer.args, trainer.state
    step = state.global_step + 1  # it is counted after the optimizer's own step
    match str(getattr(arguments.eval_strategy, "value", arguments.eval_strategy)):
        case "steps":
            return bool(step % state.eval_steps == 0 and arguments.eval_delay <= step)
        case "epoch":
            each = state.max_steps / arguments.num_train_epochs if arguments.max_steps <= 0 else 0
            return bool(each) and step % each == 0
    return False
