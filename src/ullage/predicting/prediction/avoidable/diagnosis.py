"""Observe the operators of a run, and find the memory that the script could avoid."""

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ullage.base.errors import UllageError
from ullage.gpu.emulator.emulate import Emulation
from ullage.gpu.tracing.journal import Journal
from ullage.gpu.values.start import Values
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.held_over import held_over, rows_of_held_over
from ullage.predicting.prediction.avoidable.holder_watch import HolderWatch
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.nested_padding import nested_padding
from ullage.predicting.prediction.avoidable.of_allocator import fragmentation, workspaces
from ullage.predicting.prediction.avoidable.of_model import attention_scores, saved_activations, vocabulary_scores
from ullage.predicting.prediction.avoidable.of_optimizer import (
    gradients_beside_copies,
    optimizer_temporaries,
    stale_gradients,
)
from ullage.predicting.prediction.avoidable.repeated import expanded_copies, repeated_results
from ullage.predicting.prediction.avoidable.uses import LastUses, TrainingPasses, UseLog
from ullage.predicting.prediction.avoidable.weight_copies import WeightCopy, rows_of_copies, weight_copies
from ullage.predicting.prediction.data.avoidable_memory import Avoidable
from ullage.predicting.prediction.measurement.placement import rebuilt_of
from ullage.predicting.prediction.measurement.trace import Levels, Memory
from ullage.training.ownership.safe_inspection import is_of

if TYPE_CHECKING:
    from ullage.predicting.prediction.observation.observer import Observer


class AvoidableSearch:
    """A search for avoidable memory. It observes operators between the calls of `begin` and `end`."""

    def __init__(self, journal: Journal, observer: "Observer", values: Values) -> None:
        self._journal = journal
        self._observer = observer
        self._values = values
        self._uses = UseLog(journal.length)
        self._holders = HolderWatch(journal, observer)
        # False if the run replayed a CUDA graph, because a replay hides its operators.
        self._is_whole = False
        self._copies: list[WeightCopy] = []
        self._vocabularies: set[int] = set()

    def begin(self) -> None:
        """Start to observe operators. Call this method before CUDA is initialised."""
        self._values.listen(self._uses.hear, self._uses.used)
        self._observer.before_pass = self._holders.look

    def end(self) -> None:
        """Find copies of the weights, and the vocabulary sizes of embeddings. Call this while the script's objects
        still exist.
        """
        self._is_whole = self._values.is_on and not self._observer.graphs.replays
        self._copies = weight_copies(self._observer.trained_parameters())
        embeddings = [one for one in gc.get_objects() if is_of(one, (nn.Embedding,))]
        self._vocabularies = {vars(one).get("num_embeddings", 0) for one in embeddings}

    def found(
        self,
        memory: Memory,
        levels: Levels,
        recorded: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]],
        *,
        torch_version: str,
        emulation: Emulation,
    ) -> list[Avoidable]:
        """Return the avoidable memory, largest first.

        Args:
            memory: the memory of the device that reserved most.
            levels: the allocated and reserved bytes of this device over time.
            recorded: PyTorch's memory snapshot of this device.
            history: PyTorch's complete record of allocations and frees on this device.
            torch_version: the version of torch.
            emulation: the emulated GPU.
        """
        observer = self._observer
        peak = int(levels.allocated.argmax())
        moment = PeakMoment(
            memory=memory,
            stacks=self._journal.stacks,
            index=int(levels.index[peak]),
            allocated_bytes=int(levels.allocated[peak]),
            reserved_bytes=int(levels.reserved.max()),
            step_ends=observer.step_ends,
        )
        try:
            settings = recorded.get("allocator_settings", {})
            rebuilt = rebuilt_of(history, settings, torch_version, emulation.total_memory_bytes)
        except UllageError:
            rebuilt = None
        gains = Gains(
            memory.lives,
            levels,
            memory.device,
            rebuilt,
            placement=emulation.placement,
            ran_out=bool(observer.ooms),
        )
        rows = [*self._by_use(moment, gains), *workspaces(moment, gains)]
        rows += rows_of_copies(self._copies, moment, gains)
        rows += saved_activations(moment)
        return sorted([*rows, *fragmentation(moment, gains, levels)], key=lambda row: -row.peak_bytes)

    def _by_use(self, moment: PeakMoment, gains: Gains) -> list[Avoidable]:
        observer, memory = self._observer, moment.memory
        lives = memory.lives
        passes = TrainingPasses.of(observer.moments, observer.step_ends if observer.has_optimizer else ())
        rows = optimizer_temporaries(moment, gains)
        if not self._is_whole:
            return rows
        if len(passes):
            rows += self._of_passes(moment, gains, passes)
        rows += expanded_copies(moment, gains, self._uses.expanded_copies(lives))
        rows += repeated_results(moment, gains, self._uses.contents(lives))
        return rows

    def _of_passes(self, moment: PeakMoment, gains: Gains, passes: TrainingPasses) -> list[Avoidable]:
        observer, memory = self._observer, moment.memory
        lives = memory.lives
        table = self._uses.table(lives)
        uses = LastUses(table, passes, len(lives.born))
        end = observer.ooms[-1].index if observer.ooms else self._journal.length()
        held = held_over(lives, memory.roles, uses, passes, self._holders.seen(), device=memory.device, end=end)
        rows = rows_of_held_over(held, moment, gains)
        rows += stale_gradients(moment, gains, table, uses, passes, end)
        rows += gradients_beside_copies(moment, gains, uses)
        rows += vocabulary_scores(moment, gains, table, self._vocabularies)
        rows += attention_scores(moment, gains, table)
        rows += nested_padding(moment, table)
        return rows
