"""Start to compute tensor values in this process when CUDA is initialised."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ullage.base.garbage_collector import without_collections
from ullage.base.units import MIB
from ullage.gpu.tracing.compiled import compiled_graphs
from ullage.gpu.tracing.journal.host import resident
from ullage.gpu.values.choice import ValuesChoice
from ullage.gpu.values.computation import Computation
from ullage.gpu.values.content import KEY, BlockContents, EmulatedDriver, UnseenWrites
from ullage.gpu.values.dispatch import Listener, is_thread_seen
from ullage.gpu.values.evaluation import Evaluation
from ullage.gpu.values.faults import Faults
from ullage.gpu.values.hidden_frames import hide_own_frames
from ullage.gpu.values.interception import Interception
from ullage.gpu.values.messages import RankMessages
from ullage.gpu.values.notes import Notes
from ullage.gpu.values.reads import Reads
from ullage.gpu.values.routing import Routing
from ullage.gpu.values.unseen_kernels import watch_kernels

BUDGET_BYTES: Final = 512 * MIB
"""The limit for the host memory in which ullage stores the values of GPU tensors, in bytes."""

_UNSEEN_THREAD: Final = "operations of a thread of the script"


_current: "Values | None" = None


def current() -> "Values":
    """Return the object that computes the tensor values of this process's emulated GPU."""
    assert _current is not None, "no GPU is emulated in this process"
    return _current


class Values:
    """Computes the tensor values of this process's emulated GPU after `start`."""

    def __init__(self, choice: ValuesChoice, driver: EmulatedDriver) -> None:
        self.choice = choice
        self.reads = Reads()
        self.faults = Faults()
        self.faults.on_fault = self._lose_everything
        self.evaluation = Evaluation(seed=choice.seed, routing=Routing(choice.routing), budget_bytes=BUDGET_BYTES)
        self._interception: Interception | Computation = (
            Computation(self.faults, self.reads, self.evaluation.failures, driver.answer, driver.leave_memory)
            if choice.mode == "all"
            else Interception(self.faults, self.evaluation, self.reads, driver)
        )
        self._driver = driver
        self.is_on = False
        """Whether the operators of this process are intercepted."""
        self.has_stopped = False
        self.resident_bytes = 0
        """The host memory in bytes that ullage needs to intercept operators. The values of tensors are not included."""
        self._unseen_writes: UnseenWrites | None = None
        self._unseen_before = 0
        self._undo: list[Callable[[], None]] = []
        self._used: Callable[[torch.Tensor], None] | None = None

    def start(self) -> None:
        """Begin to compute tensor values when this process initialises CUDA.

        A process that does not initialise CUDA is not slowed down. ullage also intercepts the operators of threads that
        start before CUDA is initialised.
        """
        global _current
        _current = self
        if self.choice.mode != "off":
            self._interception.prepare()
            self._interception.include()
            self._watch_threads()
            torch.cuda._lazy_call(self.begin)

    def wait_for_reads(self, choice: ValuesChoice, missed: Callable[[], None]) -> None:
        """Call `missed` when a script reads a GPU value that may change what it does. Until then, compute no values.

        Args:
            choice: the choice to report; the choice of this process is "off".
            missed: a function that is called in the thread that reads the value.
        """
        self.choice, self.has_stopped = choice, True
        self.reads.missed = missed

    def listen(self, hear: Listener, used: Callable[[torch.Tensor], None]) -> None:
        """Set two functions that ullage calls when the script uses GPU tensors. Set them before CUDA is initialised.

        Args:
            hear: a function that gets each intercepted operator and the operator's arguments, and returns a function
                that gets the operator's result.
            used: a function that gets each tensor that a GPU kernel outside PyTorch's operators uses.
        """
        self._interception.listener = hear
        self._used = used

    @property
    def contents(self) -> BlockContents:
        """The record of the values in GPU memory. It does not exist if ullage runs all operators on the host."""
        assert isinstance(self._interception, Interception)
        return self._interception.notes.contents

    @property
    def messages(self) -> RankMessages | None:
        """The messages between the ranks of the script, or None if ullage runs all operators on the host."""
        return self._interception.messages if isinstance(self._interception, Interception) else None

    @property
    def failures(self) -> dict[str, str]:
        """Maps each operation that the host could not compute to the reason."""
        writes = self._unseen_writes
        failed = dict(self.evaluation.failures)
        if self.choice.mode == "all" and writes is not None and writes.value != self._unseen_before:
            failed[_UNSEEN_THREAD] = "the thread started before torch was imported, so nothing is computed in it"
        return failed

    def stop(self) -> None:
        """Stop computing tensor values. Values that the script reads from now on are unknown."""
        if not self.is_on:
            return
        self.is_on = False
        self.has_stopped = True
        with self.faults.kept("the end of tracking"):
            self._end()

    def _lose_everything(self) -> None:
        try:
            if isinstance(self._interception, Interception):
                self._interception.notes.clear()
        except Exception as error:
            self.faults.note("a loss of all values", error)
            self._interception.has_ended = True

    def _end(self) -> None:
        if compiled_graphs():
            # The guards of compiled graphs include the interception key; without it the graphs would be compiled again.
            self._interception.has_ended = True
        else:
            self._interception.include(on=False)
        self._driver.remember_sent(on=False)
        self._driver.watch_writes(None, 0)
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        if isinstance(self._interception, Interception):
            self._interception.stop()

    def begin(self) -> None:
        """Begin to compute tensor values now, even if CUDA is not initialised yet.

        Ranks that exchange messages before they initialise CUDA need this call. A second call has no effect.
        """
        if self.is_on or self.has_stopped or self.choice.mode == "off":
            return
        self.is_on = True
        try:
            self._begin()
        except Exception as error:
            self.faults.note("the beginning of tracking", error)
            self.stop()

    def _begin(self) -> None:
        before = resident().bytes
        hide_own_frames(self.faults)
        self._driver.remember_sent(on=True)
        with without_collections():
            self._interception.install()
        self._interception.include()
        self._unseen_writes = self._driver.watch_writes(is_thread_seen(), int(KEY))
        self._unseen_before = self._unseen_writes.value
        if isinstance(self._interception, Computation):
            self._watch_graphs(self._interception)
            self._watch_seeds(self._interception)
        else:
            self._interception.notes.contents.watch(self._unseen_writes)
            self._watch_graphs(self._interception.notes)
            watch_kernels(
                self.faults.keeping("a kernel of Triton", self._interception.notes.unseen),
                None if self._used is None else self.faults.keeping("a kernel of Triton", self._used),
                self._stand_in,
            )
            self._interception.waiting.watch_steps(self.faults)
        self.resident_bytes = max(0, resident().bytes - before)

    def _watch_threads(self) -> None:
        original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # where each thread begins

        def bootstrap_inner(thread: threading.Thread) -> None:
            if not self.has_stopped:
                with self.faults.kept("the start of a thread"):
                    self._interception.include()
            original(thread)

        self._stand_in(threading.Thread, _bootstrap_inner=bootstrap_inner)

    def _watch_graphs(self, graphs: Computation | Notes) -> None:
        graph: Any = torch.cuda.CUDAGraph
        faults = self.faults
        begin, end, launch = graph.capture_begin, graph.capture_end, graph.replay
        recorded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

        def capture_begin(this: Any, *arguments: Any, **keywords: Any) -> Any:
            result = begin(this, *arguments, **keywords)
            with faults.kept("the capture of a CUDA graph"):
                graphs.begin_capture()
            return result

        def capture_end(this: Any) -> Any:
            with faults.kept("the capture of a CUDA graph"):
                recorded[this] = graphs.end_capture()
            return end(this)

        def replay(this: Any) -> None:
            position = None
            with faults.kept("a CUDA graph"):
                position = graphs.before_replay()
            launch(this)
            with faults.kept("a CUDA graph"):
                graphs.after_replay(recorded.get(this, ()), position)

        self._stand_in(graph, capture_begin=capture_begin, capture_end=capture_end, replay=replay)

    def _stand_in(self, owner: Any, **functions: Any) -> None:
        for name, function in functions.items():
            original = getattr(owner, name)
            setattr(owner, name, function)
            self._undo.append(lambda name=name, original=original: setattr(owner, name, original))  # type: ignore[misc]

    def _watch_seeds(self, computation: Computation) -> None:
        numbers = computation.random_numbers
        # torch.manual_seed calls torch.cuda.manual_seed_all, and its own note comes last.
        for modules, names, note in (
            ((torch, torch.random), ("manual_seed",), numbers.seed),
            ((torch.cuda, torch.cuda.random), ("manual_seed", "manual_seed_all"), numbers.seed_card),
        ):
            for name in names:
                self._note_after(modules, name, note)

    def _note_after(self, modules: Sequence[Any], name: str, note: Callable[[], None]) -> None:
        original = getattr(modules[0], name)

        def around(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            with self.faults.kept("a seed"):
                note()
            return result

        for module in modules:
            self._stand_in(module, **{name: around})
