"""The objects that measure a script from its import of torch to its end, and the functions of torch that they
replace.
"""

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

_STEPS_WITH_VALUES: Final = 2
"""The number of steps after which values are no longer tracked if none of these steps read a value back that may affect
a size or a branch. If a later step does, the script is run again from the start.
"""
_ENTRIES: Final = 1_200_000  # three entries per block: allocation, free requested, free completed


class AllocatorHistory:
    """PyTorch's own history of allocations and frees, recorded from the initialisation of CUDA on.

    A history that the script itself starts is the same one.
    """

    def __init__(self, torch: Any, *, with_stacks: bool, with_frees: bool) -> None:
        """Start to record.

        Args:
            torch: the module.
            with_stacks: whether to record a call stack for each entry; an entry without a stack takes a fraction of the
                time.
            with_frees: whether to record frees; they double the time for recording. Older versions of PyTorch always
                do.
        """
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
        """The number of history entries per block."""
        return 3 if self.has_frees else 1

    def _begin(self) -> None:
        self._start(enabled="all", max_entries=_ENTRIES, **self._wanted)

    def clear(self) -> None:
        """Delete the recorded entries, and continue to record."""
        if "clear_history" in self._parameters:
            self._start(enabled="all", max_entries=_ENTRIES, clear_history=True, **self._wanted)
        else:  # older versions of PyTorch delete the entries when recording stops
            self._start(enabled=None)
            self._begin()

    def give_back(self) -> None:
        """Let the script's own calls start and stop the history again."""
        self._memory._record_memory_history = self._start


class FollowsRun(Protocol):
    """The interface of a run for notifications: on steps, on reads of values, on the end of other ranks and of the
    epoch.
    """

    def on_step(self, number: int) -> None: ...
    def on_recount(self) -> None: ...
    def on_read(self) -> None: ...
    def on_others_end(self) -> None: ...
    def on_epoch_end(self) -> None: ...


class Instruments:
    """All objects that measure one script; they are installed right after torch is imported."""

    def __init__(self, context: RunContext, run: FollowsRun, torch: ModuleType) -> None:
        request, journal, note = context.request, context.journal, context.notes.append
        self.values = current()
        """The tracked values of tensors, from which the script's reads are answered."""
        if request.begins_without_values:
            self.values.wait_for_reads(request.values, run.on_read)
        self.observer = Observer(journal, self.values.reads, run.on_step, run.on_recount)
        self.observer.install()
        self.steps = StepsTaken(request, journal, self.observer)
        self.search = _search_begun(context, self.observer, self.values)
        """The search for memory that could be avoided; None if it was not requested."""
        if self.values.messages is not None and isinstance(self.values.messages.post, StorePost):
            self.values.messages.post.without = run.on_others_end
        self.whereabouts = Whereabouts(context.channel, journal, self.values.reads)
        self.whereabouts.begin(torch)
        self.post: LonePost | None = None
        """The messages of other ranks; None for a single rank, or without an exchange."""
        if request.options["world_size"]:
            lone_rank.stand_in_for_the_others(torch)
            self.post = _connected(context, self.values)
        lone_rank.run_spawned_here(torch, request.options["rank"], note)
        self.loop: TrainingLoop | None = None
        """The training loop with the requested changes and facts about the training; None if neither was requested."""
        if request.changes or request.diagnose:
            from ullage.predicting.changes.all_changes import install

            self.loop = install(request.changes, journal if request.diagnose else None)
        self.history = _history_begun(context, torch)
        context.meter.follow(self.values, history_entries=self.history.entries_of_a_block)
        self.epoch: EpochRun | None = None
        """The prediction of an epoch; None if it was not requested."""
        if request.options["batches"] is not None:
            from ullage.predicting.prediction.child import epoch_run

            self.epoch = epoch_run.EpochRun(context, self.observer, self.history.clear, run.on_epoch_end)

    def look_after_values(self, number: int) -> None:
        """Stop tracking values after the first steps, if these read no value back that may affect a size or a branch.

        Tracking values slows down every operation.
        """
        values = self.values
        if values.choice.mode != "auto" or number != _STEPS_WITH_VALUES or self.search is not None:
            return
        is_unused = values.messages is None or not values.messages.are_used
        if values.is_on and values.reads.are_logged_only and is_unused:
            values.stop()

    def leave(self) -> None:
        """Stop measuring in this process, which was forked."""
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
    """Connect this rank to the exchange of messages, through which it receives from other ranks and sends to them."""
    request = context.request
    if request.exchange is None or values.messages is None:
        return None
    post = LonePost(request.exchange, request.variant, request.options["rank"], request.helps, context.channel.send)
    post.largest_team = LARGEST_TEAM if request.asks_all else 0
    post.connect()
    values.messages.post = post
    return post


def _history_begun(context: RunContext, torch: ModuleType) -> AllocatorHistory:
    """Make PyTorch record its history, which has the requested sizes that the journal does not have."""
    request = context.request
    with_stacks = not context.journal.stacks.are_recorded or request.snapshot is not None
    # Frees show the effect of other placements of segments, and are needed only if addresses decide.
    with_frees = addresses_count(context.torch.version) or request.options["batches"] is not None or request.diagnose
    return AllocatorHistory(torch, with_stacks=with_stacks, with_frees=with_stacks or with_frees)
