"""Runs the optimizer's step, including unscaling and clipping. It never leaves a step half applied.

A step that creates optimizer state gets a dry run, which shows whether the state fits. If memory runs out in a later
step, memory is freed, and the step resumes at the operation that failed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from ullage.recorded.message.message import Message
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.retry_operations import ForeachOperations, RetryingMode, names_in
from ullage.training.guard.memory.room import Room
from ullage.training.guard.optimizer_step.first_step import all_or_nothing, has_hooks, try_out
from ullage.training.guard.state.copies import parameters_in
from ullage.training.ownership.failure import clear_frames

# Optimizers whose step can be resumed, because they never use an old value after writing the new value: a second run
# can skip the writes that were already made. tests/training/guard/test_update.py tests each of them with a failure at
# every operation. For all other optimizers each failed operation is retried.
_RESUMABLE: Final = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)
# The settings of a parameter group that determine which operations an optimizer's step runs.
_DECIDING: Final = ("foreach", "fused", "capturable", "differentiable", "amsgrad", "momentum", "centered")
_CLIPPING: Final = names_in([clip_grad.__name__])
_NO_NAMES: Final[frozenset[str]] = frozenset()
_version: Final = attrgetter("_version")

LogEvent = Callable[[str, str, Message], None]
"""A function that logs an out-of-memory error. Its arguments are the failed stage, the action taken, and the parsed
error message.
"""


class Update:
    """Clips gradients and steps optimizers. If memory runs out, the work is either completed or not started."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Sequence[nn.Parameter],
        room: Room,
        log_event: LogEvent,
        *,
        scaler: GradScaler | None = None,
        clip_grad_norm: float | None = None,
        before_step: Callable[[], Any] | None = None,
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._room = room
        self._log_event = log_event
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._clip_grad_norm = clip_grad_norm
        self._before_step = before_step
        self._lists = ForeachOperations()
        self._stage = ""
        self._names_of_scaler = names_in(_modules_of(scaler))
        self._known: dict[int, _Known] = {}
        self.total_norm: torch.Tensor | None = None

    def run(self) -> None:
        """Unscale and clip the gradients. Then step the optimizers and update the scaler.

        Raises:
            torch.OutOfMemoryError: the optimizer's state does not fit. Nothing has changed.
        """
        new = [optimizer for optimizer in self._optimizers if self._is_new(optimizer)]
        for optimizer in new:
            if _is_torchs_own(optimizer):
                self._secure(optimizer)
        if self._scaler is not None:
            for optimizer in self._optimizers:
                unscale = partial(self._scaler.unscale_, optimizer)
                self._complete("unscaling", unscale, self._gradients, self._names_of_scaler)
        if self._clip_grad_norm is not None:
            self._clip(self._clip_grad_norm)
        if self._before_step is not None:
            with self._retrying("before_step"):
                self._before_step()
        for optimizer in self._optimizers:
            self._step(optimizer, is_new=optimizer in new)
        if self._scaler is not None:
            self._complete("the scaler's update", self._scaler.update, self._of_scaler, self._names_of_scaler)

    def try_out(self) -> bool:
        """Allocate the memory that the optimizers' step needs, without writing anything.

        Returns:
            Whether this was possible for all optimizers; it is possible only for those of `torch.optim`.

        Raises:
            torch.OutOfMemoryError: the optimizer's state or temporaries do not fit.
        """
        own = [optimizer for optimizer in self._optimizers if _is_torchs_own(optimizer)]
        for optimizer in own:
            self._secure(optimizer)
        return len(own) == len(self._optimizers)

    def _is_new(self, optimizer: Optimizer) -> bool:
        known = self._known.get(id(optimizer))
        return (
            known is None
            or len(optimizer.state) != known.states
            or list(map(known.settings_of, optimizer.param_groups)) != known.settings
            or (known.is_partial and known.state_key != _state_key(optimizer))
        )

    def _clip(self, max_norm: float) -> None:
        gradients = self._gradients()

        def measure() -> None:
            self.total_norm = nn.utils.get_total_norm(gradients)

        def scale() -> None:
            assert self.total_norm is not None
            nn.utils.clip_grads_with_norm_(self._parameters, max_norm, self.total_norm)

        # Clipping has two stages, because the norm can no longer be measured once the first gradient has been scaled.
        # Gradients are scaled as lists, except that tensor subclasses are scaled one by one.
        self._complete("clipping", measure, list, _NO_NAMES, singly=False)
        is_plain = {torch.Tensor}.issuperset(map(type, gradients))
        self._complete("clipping", scale, self._gradients, _CLIPPING, singly=not is_plain)

    def _step(self, optimizer: Optimizer, *, is_new: bool) -> None:
        run = optimizer.step if self._scaler is None else partial(self._scaler.step, optimizer)
        known = self._known.get(id(optimizer))
        if known is not None and known.is_resumable and not is_new and not has_hooks(optimizer):
            self._complete("the optimizer's step", run, known.written, known.names, singly=known.writes_singly)
            return
        # The step of a complex parameter writes views, which are different tensor objects from those whose versions
        # were recorded.
        is_resumable = type(optimizer) in _RESUMABLE and not any(
            one.dtype.is_complex for one in parameters_in([optimizer])
        )
        with self._retrying("the optimizer's step") as retrying:
            if is_new and not _is_torchs_own(optimizer):
                all_or_nothing(optimizer, run, retrying.is_makeshift)
            else:
                run()
        # The settings are compared at each step, because `load_state_dict` and users may change them.
        names = [name for name in _DECIDING if all(name in group for group in optimizer.param_groups)]
        settings_of: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else len
        writes_singly = retrying.has_written_singly(_written_by(self._parameters, optimizer))
        self._known[id(optimizer)] = _Known(
            state_key=_state_key(optimizer),
            settings=list(map(settings_of, optimizer.param_groups)),
            settings_of=settings_of,
            states=len(optimizer.state),
            is_partial=bool(_without_state(optimizer)),
            is_resumable=is_resumable,
            writes_singly=writes_singly,
            written=partial(_written_by, self._parameters, optimizer),
            names=names_in(_modules_of(optimizer)),
        )

    def _gradients(self) -> list[torch.Tensor]:
        return [gradient for gradient in map(attrgetter("grad"), self._parameters) if gradient is not None]

    def _of_scaler(self) -> list[torch.Tensor]:
        values = (self._scaler._scale, self._scaler._growth_tracker) if self._scaler is not None else ()
        return [value for value in values if value is not None]

    def _complete(
        self,
        stage: str,
        run: Callable[[], Any],
        written: Callable[[], list[torch.Tensor]],
        names: frozenset[str],
        *,
        singly: bool = True,
    ) -> None:
        # Only writes to the tensors that `written` returns are skipped, because these tensors outlive the attempt;
        # everything else is computed again.
        self._stage = stage
        before = written() if singly else []
        versions = list(map(_version, before))
        failure: BaseException
        try:
            self._lists.run_to_end(run, self._retry, names=names, notes_all=singly)
            self._lists.written = []
            return
        except Exception as error:
            if read_oom(error, is_on_host=self._room.is_on_host) is None:
                raise
            failure = error
        clear_frames(failure)
        self._room.collect()
        lasting = written()
        made = self._made(dict(zip(map(id, before), versions, strict=True)), lasting if singly else [])
        ids = set(map(id, lasting))
        lists = [targets[0] for targets in self._lists.written if targets and targets[0] in ids]
        self._lists.written = []
        self._log(stage, "resumed where it stopped" if made or lists else "retried", failure)
        del failure  # it refers to this frame, and would keep the tensors alive that the run has allocated
        with self._retrying(stage, made, lists):
            run()

    def _retry(self, operation: Callable[[], Any], error: Exception) -> Any:
        self._free(self._stage, error)
        return self._retrying(self._stage).run(operation, (), {})

    def _free(self, stage: str, error: BaseException, *, empties_cache: bool = False) -> None:
        self._log(stage, f"one operation retried{' after empty_cache' if empties_cache else ''}", error)
        clear_frames(error)
        self._room.collect()
        if empties_cache:
            self._room.empty_cache()

    def _made(self, before: dict[int, int], now: list[torch.Tensor]) -> dict[int, int]:
        on_lists = set(chain.from_iterable(self._lists.written))
        return {
            id(tensor): writes
            for tensor in now
            if id(tensor) not in on_lists and (writes := tensor._version - before.get(id(tensor), 0))
        }

    def _retrying(
        self, stage: str, made: dict[int, int] | None = None, made_on_lists: Sequence[int] = ()
    ) -> RetryingMode:
        ways = (partial(self._free, stage), partial(self._free, stage, empties_cache=True))
        return RetryingMode(ways, made, made_on_lists)

    def _log(self, stage: str, action: str, error: BaseException) -> None:
        message = read_oom(error, is_on_host=True)
        assert message is not None
        self._log_event(stage, action, message)

    def _secure(self, optimizer: Optimizer) -> None:
        foreach = [group.get("foreach") for group in optimizer.param_groups]
        ways = (None, self._room.empty_cache, partial(_go_one_by_one, optimizer))
        for way in ways:
            if way is not None:
                way()
            failure = self._tried_out(optimizer)
            if failure is None:
                return
            clear_frames(failure)
            self._room.collect()
            self._log("the optimizer's first step", "dry run retried" if way is not ways[-1] else "gave up", failure)
        for group, value in zip(optimizer.param_groups, foreach, strict=True):
            if "foreach" in group:
                group["foreach"] = value
        assert failure is not None
        raise failure

    def _tried_out(self, optimizer: Optimizer) -> Exception | None:
        try:
            try_out(optimizer, self._room.retrying())
        except Exception as error:
            if read_oom(error, is_on_host=self._room.is_on_host) is not None:
                return error
        return None  # any other error is left for the step itself to raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    state_key: tuple[int, ...]
    settings: list[Any]
    settings_of: Callable[[dict[str, Any]], Any]
    states: int
    is_resumable: bool
    # parameters without a gradient count as well
    is_partial: bool
    writes_singly: bool
    written: Callable[[], list[torch.Tensor]]
    names: frozenset[str]


def _state_key(optimizer: Optimizer) -> tuple[int, ...]:
    return len(optimizer.param_groups), *(id(one) for one in _without_state(optimizer) if one.grad is not None)


def _without_state(optimizer: Optimizer) -> list[torch.Tensor]:
    parameters, state = parameters_in([optimizer]), optimizer.state
    if len(state) == len(parameters) and all(state.values()):
        return []
    return [parameter for parameter in parameters if not state.get(parameter)]


def _modules_of(value: object) -> list[str]:
    return [kind.__module__ for kind in type(value).__mro__[:-1]]


def _is_torchs_own(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _written_by(parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> list[torch.Tensor]:
    state = chain.from_iterable(map(dict.values, optimizer.state.values()))
    return [*parameters, *(value for value in state if isinstance(value, torch.Tensor))]


def _go_one_by_one(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "foreach" in group and not group.get("fused"):
            group["foreach"] = False
