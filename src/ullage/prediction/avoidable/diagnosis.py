"""The search for what is avoidable, in the script's process: what is watched while it runs, and what is made of it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ullage._errors import UllageError
from ullage.emulator.emulate import Emulation
from ullage.prediction.avoidable.avoidable import Avoidable
from ullage.prediction.avoidable.gain import Gains
from ullage.prediction.avoidable.held_over import Uses, held_over
from ullage.prediction.avoidable.held_over_rows import rows_of
from ullage.prediction.avoidable.holder_watch import HolderWatch
from ullage.prediction.avoidable.moment import Moment
from ullage.prediction.avoidable.passes import Passes
from ullage.prediction.avoidable.uses import UseLog
from ullage.prediction.measurement.placement import rebuilt_of
from ullage.prediction.measurement.trace import Levels, Memory
from ullage.tracing.journal import Journal
from ullage.values.start import Values

if TYPE_CHECKING:
    from ullage.prediction.observation.observer import Observer


class Diagnosis:
    """Watches a run for what is avoidable, from `begin` on."""

    def __init__(self, journal: Journal, observer: "Observer", values: Values) -> None:
        self._journal = journal
        self._observer = observer
        self._values = values
        self._uses = UseLog(journal.length)
        self._holders = HolderWatch(journal, observer)
        self._is_whole = False
        """Whether every operation of the run was seen: what a CUDA graph replays is not."""

    def begin(self) -> None:
        """Listen to operations, and ask who holds what before each pass; before CUDA is initialised."""
        self._values.listen(self._uses.hear, self._uses.note)
        self._observer.before_pass = self._holders.look

    def end(self) -> None:
        """Note whether all operations were seen, before they no longer are."""
        self._is_whole = self._values.is_on and not self._observer.graphs.replays

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
        """Return what is avoidable, the largest first.

        Args:
            memory: of the device that reserved most.
            levels: of the same.
            recorded: PyTorch's snapshot of it.
            history: all that PyTorch recorded of it.
            torch_version: the version of torch.
            emulation: the card.
        """
        observer = self._observer
        peak = int(levels.allocated.argmax())
        moment = Moment(
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
        return self._held_over(moment, gains)

    def _held_over(self, moment: Moment, gains: Gains) -> list[Avoidable]:
        observer, memory = self._observer, moment.memory
        if not self._is_whole:
            return []
        lives = memory.lives
        passes = Passes.of(observer.moments, observer.step_ends if observer.has_optimizer else ())
        if not len(passes):
            return []
        uses = Uses(*self._uses.by_block(lives), passes, len(lives.born))
        end = observer.ooms[-1].index if observer.ooms else self._journal.length()
        held = held_over(lives, memory.roles, uses, passes, self._holders.seen(), device=memory.device, end=end)
        return rows_of(held, moment, gains)
