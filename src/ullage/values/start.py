"""Values for this process: from the moment CUDA is initialised, in the threads that use it."""

import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from ullage._units import MIB
from ullage.values.choice import ValuesChoice
from ullage.values.evaluation import Evaluation
from ullage.values.interception import Interception
from ullage.values.reads import Reads
from ullage.values.routing import Routing

BUDGET_BYTES: Final = 512 * MIB
"""What values may take of the host's memory."""


_current: "Values | None" = None


def current() -> "Values":
    """Return the values of this process's emulated card."""
    assert _current is not None, "no card is emulated in this process"
    return _current


class Values:
    """The values of this process's emulated card, from `start` on."""

    def __init__(self, choice: ValuesChoice, answer: Callable[[int | None], None]) -> None:
        self.choice = choice
        self.reads = Reads()
        self.evaluation = Evaluation(
            seed=choice.seed,
            routing=Routing(choice.routing),
            budget_bytes=BUDGET_BYTES,
            everything=choice.mode == "all",
        )
        self._interception = Interception(self.evaluation, self.reads, answer)
        self._is_on = False
        self.has_stopped = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin when CUDA is initialised: a process that does not use it is not slowed down."""
        global _current
        _current = self
        if self.choice.mode != "off":
            torch.cuda._lazy_call(self._begin)

    @property
    def is_on(self) -> bool:
        """Whether operators are seen."""
        return self._is_on

    def stop(self) -> None:
        """See no more: what is read from now on is unknown."""
        if not self._is_on:
            return
        self._is_on = False
        self.has_stopped = True
        self._interception.include(on=False)
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _begin(self) -> None:
        if self._is_on:
            return
        self._is_on = True
        self._interception.install()
        self._interception.include()
        self._watch_threads()
        self._watch_graphs()

    def _watch_threads(self) -> None:
        original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # where each thread begins

        def bootstrap_inner(thread: threading.Thread) -> None:
            if self._is_on:
                self._interception.include()
            original(thread)

        threading.Thread._bootstrap_inner = bootstrap_inner  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(threading.Thread, "_bootstrap_inner", original))

    def _watch_graphs(self) -> None:
        graph: Any = torch.cuda.CUDAGraph
        interception = self._interception
        for name, is_recording in (("capture_begin", True), ("capture_end", False)):
            original = getattr(graph, name)

            def around(
                this: Any, *arguments: Any, _original: Any = original, _value: bool = is_recording, **keywords: Any
            ) -> Any:
                interception.is_recording_a_graph = _value
                return _original(this, *arguments, **keywords)

            setattr(graph, name, around)
            self._undo.append(lambda name=name, original=original: setattr(graph, name, original))  # type: ignore[misc]
