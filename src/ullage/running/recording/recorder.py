"""Records the memory of one process during `ullage run`. Recording starts when torch is imported.

It takes a sample after each training step, or once a second. It creates no CUDA context and allocates no GPU memory.
"""

import atexit
import os
import socket
import sys
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any, Final

import torch

from ullage.base.own_files import OwnFolder, SharedFolderError
from ullage.base.secrets import without_secrets
from ullage.running.recording.evidence import write_evidence
from ullage.running.recording.gauge import Gauge, cards, limit_bytes
from ullage.running.recording.history import FIRST_STEPS, MemoryHistory
from ullage.running.recording.plan import RecordingPlan, live_name, report_trouble
from ullage.running.recording.step import StepWatch
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import LiveWriter
from ullage.training.monitor.monitor import Monitor
from ullage.training.ownership.contents import owned_bytes

_FACTS_SECONDS: Final = 1.0
# The maximum number of out-of-memory errors of a process that get a folder. All other errors are only counted.
_MOST_EVIDENCE: Final = 3
_ROLES_EVERY: Final = 50
# The number of training steps between two decisions about memory history. It is also the number between two samples of
# the `Monitor`.
_DECISION_STRIDE: Final = 2
_MOST_FAILURES: Final = 3
_LONGEST_ERROR: Final = 600  # characters
_OF_HOST_MEMORY: Final = (
    *("DefaultCPUAllocator", "annot allocate memory", "nable to allocate", "ot enough memory", "shared memory"),
    *("os error 12", "os error 1455", "bad_alloc", "killed by signal", "unable to mmap"),
)


class Recorder:
    """Records this process: memory samples, facts about the process, and snapshots at out-of-memory errors."""

    def __init__(self, plan: RecordingPlan) -> None:
        self._plan = plan
        self._gauge = Gauge()
        self._history = MemoryHistory(plan.history, plan.budget_bytes)
        self._monitor = Monitor(log=lambda text: None)
        self._monitor.read_by(self._gauge.latest)
        self._step_watch = StepWatch(self._on_step)
        # The end of a training step waits only a limited time for this lock, because a lost memory sample is harmless.
        self._lock = threading.Lock()
        self._writer: LiveWriter | None = None
        self._pid = os.getpid()
        self._is_over = False
        self._step = 0
        self._sampled = monotonic()
        self._ooms = 0
        self._unwritten: tuple[int, int, int] | None = None
        self._facts = _facts_of_process()

    def install(self) -> None:
        """Start to record this process. GPU memory is recorded as soon as CUDA is initialised."""
        self._step_watch.install()
        torch.cuda._lazy_call(self._on_cuda)

    # ---- events

    def _on_cuda(self) -> None:
        with self._trouble("nothing is recorded"):
            self._pid, self._facts = (
                os.getpid(),
                _facts_of_process(),
            )  # the process may have been forked after torch was imported
            self._writer = self._open()
            self._gauge.install()
            self._history.install()
            with self._trouble("no evidence will be written if memory runs out", is_end=False):
                binding: Any = torch._C  # PyTorch's type stubs do not declare the observer
                binding._cuda_attach_out_of_memory_observer(self._on_oom)
            os.register_at_fork(after_in_child=self._stop_in_fork)
            atexit.register(self.end_of_process)
            # Not started with `threading`, because a script may count or join those threads.
            start_new_thread(self._write_facts_periodically, ())

    def _on_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._is_over or self._writer is None:
            return
        self._step += 1
        try:
            self._sample(is_end=True)
            self._monitor.step()
            if self._step >= FIRST_STEPS and self._step % _DECISION_STRIDE:
                return  # the rest runs every second step, because every line counts in a step of ten milliseconds
            if self._history.is_ours and self._step >= FIRST_STEPS:
                self._gauge.seek_lines()
            if self._step % _ROLES_EVERY == 2:  # the first step creates the optimizer state
                self._facts = replace(self._facts, roles=owned_bytes(optimizer))
            self._history.update(
                self._step,
                share=self._gauge.share,
                allocations=self._gauge.allocations,
                seeks=bool(self._gauge.seeks),
                grows=self._monitor.suspects or any(found.is_leak for found in self._monitor.findings),
            )
        except Exception as error:
            self._give_up("recording has ended", error)

    def _on_oom(self, device: int, asked_bytes: int, limit: int, free_bytes: int) -> None:
        if self._is_over:
            return
        self._ooms += 1
        self._unwritten = device, asked_bytes, free_bytes
        # A history that the script itself records may be unlimited, so writing it may take long: it is written only
        # once.
        if len(self._facts.evidence) < (_MOST_EVIDENCE if not self._history.is_users else 1):
            self._write_evidence()

    def _write_evidence(self) -> None:
        if self._unwritten is None:
            return
        (device, asked_bytes, free_bytes), self._unwritten = self._unwritten, None
        with self._trouble("the evidence is incomplete", is_end=False):
            with OwnFolder.open(self._plan.folder, inode=self._plan.inode) as folder:
                place = folder.make_folder(f"oom-{self._pid}-{len(self._facts.evidence) + 1}")
            self._facts = replace(self._facts, evidence=(*self._facts.evidence, place.path.name))
            more = {
                "step": self._step + 1,
                "total_bytes": cards()[device].total_bytes,
                "limit_bytes": limit_bytes(cards()[device]),
                "driver_free_bytes": free_bytes,
                "facts": self._current_facts().to_json(),
            }
            with place:
                write_evidence(place, device=device, asked_bytes=asked_bytes, more=more)
            self._write_facts()

    def end_of_process(self) -> None:
        if self._is_over:
            return
        with self._trouble("the end is not recorded"):
            kind = getattr(sys, "last_type", None)  # the error that ended the script
            if kind is None:
                state = "ended"
            else:
                state = "out of memory" if issubclass(kind, torch.OutOfMemoryError) else "failed"
            self._facts = replace(self._facts, state=state, error=_about_host_memory(kind))
            if state == "out of memory":
                self._write_evidence()  # written late, but the stack frames of the error still hold their tensors
            self._sample()
            if self._history.is_ours and kind is None:
                self._gauge.seek_lines(is_last=True)
            self._write_facts()
            self.stop()

    def _stop_in_fork(self) -> None:
        # the file of memory samples belongs to the parent process
        self._is_over = True

    def stop(self) -> None:
        """Stop recording and remove all hooks, except the out-of-memory observer, which PyTorch cannot remove."""
        self._is_over = True
        self._step_watch.stop()
        with suppress(Exception):
            self._monitor.__exit__()
        self._history.remove()

    @contextmanager
    def _trouble(self, what: str, *, is_end: bool = True) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_end:
                self._give_up(what, error)
            else:
                report_trouble(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        report_trouble(what, error)
        self.stop()

    # ---- files

    def _open(self) -> LiveWriter:
        path = self._plan.folder / live_name()
        try:
            return LiveWriter(path, inode=self._plan.inode)
        except (OSError, SharedFolderError) as error:
            report_trouble(f"{path} cannot be written", error)
            return LiveWriter(None)

    def _sample(self, *, is_end: bool = False) -> None:
        if self._writer is not None and self._lock.acquire(timeout=_FACTS_SECONDS):
            try:
                self._sampled = monotonic()
                for sample in self._gauge.read(self._step, is_end=is_end):
                    self._writer.add(sample)
            finally:
                self._lock.release()

    def _write_facts(self) -> None:
        if self._writer is not None and self._lock.acquire(timeout=_FACTS_SECONDS):
            try:  # facts are gathered while the lock is held, so that older facts never overwrite newer ones
                self._writer.write_facts(self._current_facts().to_json())
            finally:
                self._lock.release()

    def _current_facts(self) -> RunFacts:
        history = self._history
        return replace(
            self._facts,
            told=time(),
            steps=self._step,
            step_seconds=history.step_seconds,
            cards=tuple(replace(card, limit_bytes=limit_bytes(card)) for card in cards()),
            peaks=tuple(self._gauge.peaks.values()),
            arming=replace(history.arming, is_on=history.is_on, cost=history.cost),
            growth=tuple(str(found) for found in self._monitor.findings if found.is_urgent),
            ooms=self._ooms,
        )

    def _write_facts_periodically(self) -> None:
        failures = 0
        pause = threading.Lock()
        pause.acquire()
        while not self._is_over and failures < _MOST_FAILURES:
            try:
                self._write_facts()  # before the query to the driver, which may hang
                self._gauge.ask_driver()
                if monotonic() - self._sampled > _FACTS_SECONDS:
                    self._sample()
            except Exception as error:  # evidence is still written
                failures += 1
                if failures == _MOST_FAILURES:
                    report_trouble("the driver is no longer queried", error)
            pause.acquire(
                timeout=_FACTS_SECONDS
            )  # not `time.sleep`, which a script may have replaced by a function that returns at once


def _about_host_memory(kind: type[BaseException] | None) -> str:
    """Return the text of the exception that ended the script if it mentions host memory. Otherwise, return ""."""
    if kind is None:
        return ""
    with suppress(Exception):  # the exception's own __str__ may fail
        text = f"{kind.__name__}: {getattr(sys, 'last_value', '')}"[:_LONGEST_ERROR]
        if issubclass(kind, MemoryError) or any(mark in text for mark in _OF_HOST_MEMORY):
            return text
    return ""


def _facts_of_process() -> RunFacts:
    now = time()
    return RunFacts(
        pid=os.getpid(),
        command=without_secrets(sys.orig_argv),
        host=socket.gethostname(),
        started=now,
        told=now,
        rank=_number("RANK"),
        local_rank=_number("LOCAL_RANK"),
        world_size=_number("WORLD_SIZE"),
        torch=torch.__version__,
        is_emulated=bool(os.environ.get("ULLAGE_EMULATED_CARD")),
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
