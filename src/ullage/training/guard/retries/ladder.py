"""Runs forward and backward of a batch, and retries them with less memory after an out-of-memory error.

The retries are: unchanged, after `empty_cache`, in parts, with activation checkpointing, and with saved tensors in host
memory. Before each retry, the failed attempt is undone. What succeeded is remembered for each batch shape.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from ullage.base.errors import UsageError
from ullage.recorded.message.message import Message
from ullage.training.guard.event import Event
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.room import Room
from ullage.training.guard.ranks import Ranks
from ullage.training.guard.retries.forecast import Forecast
from ullage.training.guard.retries.memory_savers import MemorySavers
from ullage.training.guard.retries.plan import PLAIN, BatchPlan, Plans, Rung
from ullage.training.guard.signals import Signals
from ullage.training.guard.splitting.additivity import DIFFERS, Trials
from ullage.training.guard.splitting.batch import BatchPart, Cutter, Done, all_of, is_plain, unclear_list, why_whole
from ullage.training.guard.splitting.hooks import hooked_parameter
from ullage.training.guard.splitting.norm import BatchNorms
from ullage.training.guard.state.copies import versions_of
from ullage.training.guard.state.objects.consumables import refuse_consumables
from ullage.training.guard.state.rewind import Rewind
from ullage.training.ownership.failure import clear_frames

LossOf = Callable[[Any], Any]
STAGE = "forward and backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Runs forward and backward for the guard, and retries them after an out-of-memory error."""

    room: Room
    signals: Signals
    rewind: Rewind
    norms: BatchNorms
    savers: MemorySavers
    trials: Trials
    cutter: Cutter
    plans: Plans
    forecast: Forecast
    backward: Callable[[torch.Tensor], Any]
    is_splittable: bool | None
    """Whether the user allows the guard to split a batch.

    None means that the guard itself tests whether the losses of the parts add up to the loss of the whole batch.
    """
    may_offload: bool
    log_event: Callable[[Event], None]
    ranks: Ranks | None

    def climb(self, batch: Any, loss_of: LossOf, step: int, *, is_fresh: bool) -> "Climb":
        """Run forward and backward of a batch, in as many parts as necessary.

        Args:
            batch: a batch of any type.
            loss_of: the user's loss function.
            step: the index of the step, for the log.
            is_fresh: whether no parameter has a gradient yet.

        Raises:
            torch.OutOfMemoryError: the batch does not fit in any way; everything is as before.
        """
        try:
            if self.ranks is None and not self.norms.freezes:
                return Climb(self, batch, loss_of, step, is_fresh=is_fresh).run()
            with self.norms.frozen(), self.ranks.alone() if self.ranks is not None else nullcontext():
                return Climb(self, batch, loss_of, step, is_fresh=is_fresh).run()
        finally:
            self.rewind.end()
            self.cutter.weigh_by_items()

    def outcome(self, done: list[Done]) -> Any:
        """Return the loss of the whole batch. If the loss function returns a second value, return a tuple of both."""
        if len(done) == 1:
            one = done[0]
            return (one.loss, one.extra) if one.is_pair else one.loss
        with self.room.retrying():
            return self.cutter.outcome(done)


class Climb:
    """All attempts to run forward and backward of one batch."""

    def __init__(self, ladder: Ladder, batch: Any, loss_of: LossOf, step: int, *, is_fresh: bool) -> None:
        self._on = ladder
        self._batch = batch
        self._loss_of = loss_of
        self._step = step
        self._is_fresh = is_fresh
        tensors = all_of(batch)
        self._tensors = tensors
        self.form, whole = form, _ = ladder.cutter.form_and_whole(tensors)
        self._why_whole = form.odd
        if is_plain(batch):
            ladder.rewind.begin(loss_of, None)
        else:
            refuse_consumables(batch)
            ladder.rewind.begin(loss_of, batch)
            self._why_whole = why_whole(batch, is_vouched=ladder.is_splittable is True)
        self._versions = versions_of(tensors)
        self._used: set[Rung] = set()
        self._counted: list[str] = []
        self._pending = deque((whole,))
        self._restore_start: Callable[[], bool] | None = None
        self.done: list[Done] = []
        self.split = 0
        known = ladder.plans.plan_for(form.shape)
        parts = 1 if known or not self._may_cut() else ladder.forecast.parts_for(form.items, form.length)
        self._plan = known or (BatchPlan(parts=parts) if parts > 1 else PLAIN)
        self._is_known_plain = known is PLAIN
        if self._plan.parts > 1 and not self._may_cut():
            self._plan = replace(self._plan, parts=1)
        if ladder.ranks is not None:
            parts = ladder.ranks.begin_step(self._plan.parts)
            self._plan = replace(self._plan, parts=parts) if parts != self._plan.parts else self._plan
        if self._plan is not PLAIN and self._plan.parts > 1 and form.items is not None:
            if self._may_cut_into(-(-form.items // self._plan.parts)):
                self._cut(-(-form.items // self._plan.parts))
                ladder.norms.warn_of_split(form.items, self._plan.parts)
            else:
                self._plan = replace(self._plan, parts=1)

    def _may_cut(self) -> bool:
        if self._why_whole is not None:
            return False
        if self._on.is_splittable is None:
            return self.form.uneven is None and not (self._on.ranks is not None and self._on.ranks.in_lockstep)
        return self._on.is_splittable

    def _may_cut_into(self, size: int) -> bool:
        if not self._may_cut():
            return False
        is_vouched = self._on.is_splittable is True
        hooked = hooked_parameter(self._on.rewind.modules, is_vouched=is_vouched)
        if hooked is not None:
            self._why_whole = f"{hooked} has a hook on its gradient, which would act on each part of the batch"
        elif is_vouched:
            self._why_whole = unclear_list(self._batch, self._on.cutter.dim)
            self._on.cutter.weigh_by_items()
        else:
            with self._undoing():
                pieces = [piece for part in self._pending for piece in self._on.cutter.pieces_of(part, size)]
                self._why_whole = self._on.trials.why_not_cut(self._batch, self._loss_of, self.form, size, pieces)
        return self._why_whole is None

    def run(self) -> Self:
        done = self.done
        while self._pending:
            one, failure = self._attempt(self._pending[0])
            if one is not None:
                self._commit()
                self._is_fresh = False
                done.append(one)
                self._pending.popleft()
                continue
            assert failure is not None
            clear_frames(failure)
            self._undo(failure)
            self._on.forecast.learn_failure(self._pending[0].items, self.form.length, self._read(failure))
            rung = self._choose(failure)
            if rung is Rung.GIVE_UP:
                self._give_up(failure)
            self._apply(rung, failure)
            failure = None  # free everything that it refers to before the next attempt
        if self._plan is not PLAIN or not self._is_known_plain:
            self._on.plans.succeeded(self.form.shape, self._plan)
        self._restore_start = None  # it refers to copies of buffers
        return self

    def _commit(self) -> None:
        rewind = self._on.rewind
        if not rewind.is_comparing:
            rewind.commit()
            return
        with self._on.room.retrying():
            rewind.check()
            rewind.commit()

    def _attempt(self, part: BatchPart) -> tuple[Done | None, Exception | None]:
        on = self._on
        try:
            on.rewind.record(is_fresh=self._is_fresh)
            if self._restore_start is None and len(self._pending) > 1:
                self._restore_start = on.rewind.mark()
            if not part.finished and (self._plan is PLAIN or self._plan.is_direct):
                with on.signals.released():
                    return self._forward_and_backward(part), None
            with on.rewind.gradients.without(part.finished), on.savers.around(self._plan), on.signals.released():
                return self._forward_and_backward(part), None
        except Exception as error:
            if read_oom(error, is_on_host=on.room.is_on_host) is None:
                if part.share is not None:
                    error.add_note(
                        "The whole batch does not fit in memory, so the guard split it. The error was raised in a part "
                        f"with {part.items} of the {self.form.items} items."
                    )
                raise
            return None, error
        except BaseException:  # Ctrl-C, or another signal whose handler raises an error
            self._go_back()
            raise

    def _go_back(self) -> None:
        with self._on.room.retrying():
            finished: frozenset[tuple[int, int]] = frozenset()
            with suppress(RuntimeError):
                finished = frozenset(self._on.rewind.restore())
            with suppress(RuntimeError):
                self._drop_what_is_done(finished | self._pending[0].finished)

    def _drop_what_is_done(self, finished: frozenset[tuple[int, int]]) -> bool:
        return self._on.rewind.gradients.drop(finished) if self._restore_start is None else self._restore_start()

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._on.room.retrying(), suppress(RuntimeError):
                self._drop_what_is_done(self._pending[0].finished if self._pending else frozenset())
            raise

    def _forward_and_backward(self, part: BatchPart) -> Done:
        is_direct = self._plan is PLAIN or self._plan.is_direct
        measurement = self._on.forecast.measure(part.items, self.form.length) if is_direct else None
        with (
            torch.no_grad() if part.share == 0 else nullcontext()
        ):  # a mean over no elements is NaN, and must not change the gradient
            result = self._loss_of(self._on.cutter.select(self._batch, part))
        is_pair = isinstance(result, tuple) and len(result) == 2
        loss, extra = result if is_pair else (result, None)
        if part.share == 0 and isinstance(loss, torch.Tensor):
            return Done(part, torch.zeros_like(loss), _detached(extra), is_pair)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UsageError(
                f"the loss function returned {_described(loss)}; expected a tensor with one element that requires a "
                "gradient, or a tuple of such a tensor and any other value"
            )
        if part.share is not None and part.share != 1:
            loss = loss * part.share
        kept = loss.detach()
        self._on.rewind.after_forward()
        if measurement is not None:
            measurement.after_forward()
        self._on.backward(loss)
        if measurement is not None:
            measurement.after_backward()
        return Done(part, kept, _detached(extra) if is_pair else None, is_pair)

    def _undo(self, failure: Exception) -> None:
        part = self._pending.popleft()
        try:
            with self._on.room.retrying():
                self._counted = self._on.rewind.left_alone()
                finished = self._on.rewind.restore()
        except RuntimeError as error:
            raise error from failure  # the out-of-memory error stays visible as the cause of the restore error
        finally:
            self._on.room.collect()
        self._pending.appendleft(replace(part, finished=part.finished | finished))
        if self._on.ranks is None or not self._on.ranks.in_lockstep:
            with self._on.room.retrying():
                self._on.rewind.suspect(self._tensors)

    def _choose(self, failure: Exception) -> Rung:
        on, part, used = self._on, self._pending[0], self._used
        message = self._read(failure)
        if versions_of(all_of(self._batch)) != self._versions:
            failure.add_note(
                "The loss function writes into the batch, which cannot be undone; write into a copy instead."
            )
            return Rung.GIVE_UP
        if on.ranks is not None and on.ranks.in_lockstep:
            failure.add_note(
                "The step cannot be retried, because it contains collectives (FSDP, SyncBatchNorm) and the other ranks "
                "are in the middle of it. Restart with a smaller batch, or call rehearse() before training."
            )
            return Rung.GIVE_UP
        if on.plans.is_trying(self.form.shape) and self._may_cut():
            return Rung.SHRINK
        if Rung.AGAIN not in used:
            return Rung.AGAIN
        if Rung.EMPTY_CACHE not in used and on.room.is_in_pieces(message):
            return Rung.EMPTY_CACHE
        if not message.is_certain:
            return Rung.GIVE_UP  # the cause may not be memory; smaller parts would not help then
        if part.items is not None and part.items > 1 and self._may_cut_into(self._smaller(part.items)):
            return Rung.SPLIT
        if on.savers.checkpointed and not self._plan.checkpoint:
            with self._undoing():
                why = on.trials.why_not_computed_again(self._batch, self._loss_of, part)
            if why is None:
                return Rung.CHECKPOINT
            failure.add_note(f"Activation checkpointing was not used: {why}.")
        if on.may_offload and not self._plan.offload and not on.room.is_on_host:
            return Rung.OFFLOAD
        return Rung.GIVE_UP

    def _apply(self, rung: Rung, failure: Exception) -> None:
        failed = self._pending[0]
        self._used.add(rung)
        if rung is Rung.EMPTY_CACHE:
            self._on.room.empty_cache()
        elif rung is Rung.SHRINK:
            self._used |= {Rung.AGAIN, Rung.EMPTY_CACHE}
            self._plan = self._on.plans.failed_to_grow(self.form.shape)
            self._cut(-(-(self.form.items or 1) // self._plan.parts))
        elif rung is Rung.SPLIT and failed.items is not None and self.form.items is not None:
            self._cut(self._smaller(failed.items))
            smallest = min(part.items or 1 for part in self._pending)
            self.split = max(self._plan.parts + 1, -(-self.form.items // smallest))
            self._plan = replace(self._plan, parts=self.split)
            self._on.norms.warn_of_split(self.form.items, self._plan.parts)
        elif rung is Rung.CHECKPOINT:
            self._plan = replace(self._plan, checkpoint=True)
        elif rung is Rung.OFFLOAD:
            self._plan = replace(self._plan, offload=True)
        self._log_event(rung, failure, failed)

    def _smaller(self, items: int) -> int:
        return -(-items // self._on.forecast.parts_for(items, self.form.length, at_least=2))

    def _cut(self, size: int) -> None:
        self._pending = deque(piece for part in self._pending for piece in self._on.cutter.cut(self._batch, part, size))

    def _give_up(self, failure: Exception) -> None:
        with self._on.room.retrying():
            is_dropped = self._drop_what_is_done(self._pending[0].finished)
        if is_dropped:
            failure.add_note(
                "Some gradients that earlier calls with update=False had accumulated are lost. The failed call had "
                "already changed these gradients, so the guard set them to None."
            )
        if self._why_whole is not None:
            advice = ""
            if DIFFERS in self._why_whole:
                advice = "; if it is such a mean, pass weight= with a function that returns the number of its terms"
            elif not self._on.is_splittable:
                advice = "; pass splittable=True if its items are independent nevertheless"
            failure.add_note(f"The batch was not split: {self._why_whole}{advice}.")
        elif self._on.is_splittable is False and self.form.items != 1:
            failure.add_note("The batch was not split: splittable=False.")
        elif self._on.is_splittable is None and self.form.uneven is not None:
            failure.add_note(
                f"The batch was not split: along the batch dimension, some of its tensors have size {self.form.items} "
                f"and others {self.form.uneven}. Pass splittable=True if only tensors of size {self.form.items} have "
                "to be cut, or remove tensors that all items share from the batch."
            )
        self._log_event(Rung.GIVE_UP, failure, self._pending[0])
        raise failure

    def _read(self, failure: Exception) -> Message:
        message = read_oom(failure, is_on_host=self._on.room.is_on_host)
        assert message is not None
        return message

    def _log_event(self, rung: Rung, failure: Exception, failed: BatchPart) -> None:
        self._on.log_event(
            Event(
                step=self._step,
                stage=STAGE,
                action=rung.text(self._plan.parts),
                message=self._read(failure),
                items=failed.items,
                parts=self._plan.parts,
                remark="" if rung is Rung.GIVE_UP else self._remark(rung),
            )
        )

    def _remark(self, rung: Rung) -> str:
        several = ", ".join(self._counted[:3])
        remarks = [f"the loss function has changed {several}, which the guard does not restore"] if several else []
        if rung in (Rung.SPLIT, Rung.SHRINK) and self._on.trials.has_drawn:
            remarks.append("each part draws its own random numbers")
        return "; ".join(remarks)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        grad = "" if value.requires_grad else " that requires no gradient"
        return f"a tensor of shape {tuple(value.shape)}{grad}"
    return f"an object of type {type(value).__name__}"


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict) and type(value) is dict:
        return {key: _detached(element) for key, element in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(element) for element in value)
    return value
