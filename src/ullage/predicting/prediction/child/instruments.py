"""Measure a script from its import of torch to its end."""

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ullage.gpu.values.ranks import StorePost
from ullage.gpu.values.start import Values, current
from ullage.predicting.prediction.child.context import RunContext
from ullage.predicting.prediction.child.steps_taken import StepsTaken
from ullage.predicting.prediction.child.whereabouts import Whereabouts
from ullage.predicting.prediction.measurement.placement import addresses_count
from ullage.predicting.prediction.observation.observer import Observer
from ullage.predicting.prediction.ranks import lone_rank
from ullage.predicting.prediction.ranks.lone_post import LARGEST_TEAM, LonePost

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop
    from ullage.predicting.prediction.avoidable.diagnosis import AvoidableSearch
    from ullage.predicting.prediction.child.epoch_run import EpochRun

# Tracking continues if the script has read back a value that may affect a size or a branch. If only a later step reads
# such a value, the script is run again.
_STEPS_WITH_VALUES: Final = 2
_ENTRIES: Final = 1_200_000  # three entries per block: allocation, free requested, free completed


class AllocatorHistory:
    """PyTorch's history of allocations and frees, recorded for ullage.

    Calls of `torch.cuda.memory._record_memory_history` in the script have no effect.
    """

    # An entry without a stack takes a fraction of the time. Frees double the time; older versions of PyTorch always
    # record them.
    def __init__(self, torch: Any, *, with_stacks: bool, with_frees: bool) -> None:
        self._memory = torch.cuda.memory
        self._start = self._memory._record_memory_history
        self._parameters = inspect.signature(self._memory._record_memory_history_impl).parameters
        self._wanted: dict[str, Any] = {"context": "alloc", "stacks": "python"} if with_stacks else {"context": None}
        self.has_frees = with_frees or "skip_actions" not in self._parameters
        if not self.has_frees:
            self._wanted["skip_actions"] = ["free_requested", "free_completed"]
        torch.cuda._lazy_call(self._begin)
        self._memory._record_memory_history = lambda *arguments, **keywords: None

    @property
    def entries_of_a_block(self) -> int:
        """The number of history entries for each memory block."""
        return 3 if self.has_frees else 1

    def _begin(self) -> None:
        self._start(enabled="all", max_entries=_ENTRIES, **self._wanted)

    def clear(self) -> None:
        """Delete the history, and continue to record."""
        if "clear_history" in self._parameters:
            self._start(enabled="all", max_entries=_ENTRIES, clear_history=True, **self._wanted)
        else:  # older versions of PyTorch delete the entries when recording stops
            self._start(enabled=None)
            self._begin()

    def give_back(self) -> None:
        """Restore PyTorch's own function that starts and stops the allocation history."""
        self._memory._record_memory_history = self._start


class FollowsRun(Protocol):
    """An interface for events of a run, such as the end of a step or the end of an epoch."""

    def on_step(self, number: int) -> None: ...
    def on_recount(self) -> None: ...
    def on_read(self) -> None: ...
    def on_others_end(self) -> None: ...
    def on_epoch_end(self) -> None: ...


class Instruments:
    """All tools that measure a script. They are installed after the script imports torch."""

    def __init__(self, context: RunContext, run: FollowsRun, torch: ModuleType) -> None:
        request, journal, note = context.request, context.journal, context.notes.append
        self.values = current()
        """The tracked tensor values, which ullage returns when the script reads tensors on the CPU."""
        if request.begins_without_values:
            self.values.wait_for_reads(request.values, run.on_read)
        self.observer = Observer(journal, self.values.reads, run.on_step, run.on_recount)
        self.observer.install()
        self.steps = StepsTaken(request, journal, self.observer)
        self.search = _search_begun(context, self.observer, self.values)
        """The search for avoidable memory, or None if the user did not request it."""
        if self.values.messages is not None and isinstance(self.values.messages.post, StorePost):
            self.values.messages.post.without = run.on_others_end
        self.whereabouts = Whereabouts(context.channel, journal, self.values.reads)
        self.whereabouts.begin(torch)
        self.post: LonePost | None = None
        """The connection to other ranks, or None if ranks exchange no messages."""
        if request.options["world_size"]:
            lone_rank.stand_in_for_the_others(torch)
            self.post = _connected(context, self.values)
        lone_rank.run_spawned_here(torch, request.options["rank"], note)
        self.loop: TrainingLoop | None = None
        """The observer of the training loop, or None if the user requested no changes and no diagnosis."""
        if request.changes or request.diagnose:
            from ullage.predicting.changes.all_changes import install

            self.loop = install(request.changes, journal if request.diagnose else None)
        self.history = _history_begun(context, torch)
        context.meter.follow(self.values, history_entries=self.history.entries_of_a_block)
        self.epoch: EpochRun | None = None
        """The prediction for a whole epoch, or None if the user did not request it."""
        if request.options["batches"] is not None:
            from ullage.predicting.prediction.child import epoch_run

            self.epoch = epoch_run.EpochRun(context, self.observer, self.history.clear, run.on_epoch_end)

    def look_after_values(self, number: int) -> None:
        """Stop tracking tensor values after the first steps, unless a value may affect a tensor size or a branch."""
        values = self.values
        if values.choice.mode != "auto" or number != _STEPS_WITH_VALUES or self.search is not None:
            return
        is_unused = values.messages is None or not values.messages.are_used
        if values.is_on and values.reads.are_logged_only and is_unused:
            values.stop()

    def leave(self) -> None:
        """Stop measuring memory in a process that the script forked."""
        self.observer.remove()
        self.history.give_back()
        if self.epoch is not None:
            self.epoch.watch.leave()


def _search_begun(context: RunContext, observer: Observer, values: Values) -> "AvoidableSearch | None":
    if not context.request.diagnose:
        return None
    from ullage.predicting.prediction.avoidable.diagnosis import AvoidableSearch

    search = AvoidableSearch(context.journal, observer, values)
    search.begin()
    return search


def _connected(context: RunContext, values: Values) -> LonePost | None:
    request = context.request
    if request.exchange is None or values.messages is None:
        return None
    post = LonePost(request.exchange, request.variant, request.options["rank"], request.helps, context.channel.send)
    post.largest_team = LARGEST_TEAM if request.asks_all else 0
    post.connect()
    values.messages.post = post
    return post


# PyTorch's history has the requested size of each block, which ullage's own record does not have.
def _history_begun(context: RunContext, torch: ModuleType) -> AllocatorHistory:
    request = context.request
    with_stacks = not context.journal.stacks.are_recorded or request.snapshot is not None
    # Frees show the effect of other placements of segments, and are needed only if addresses decide.
    with_frees = addresses_count(context.torch.version) or request.options["batches"] is not None or request.diagnose
    return AllocatorHistory(torch, with_stacks=with_stacks, with_frees=with_stacks or with_frees)
