"""The recorder of one process of a run: armed when torch is imported, it shows and keeps what its memory does.

A sample is taken at the end of every step, or every second where there are none; a thread tells the facts once a
second. Where memory runs out, evidence is written. It makes no CUDA context, allocates nothing on the card, holds no
tensor, and what fails in it does not reach the script.
"""

import atexit
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import torch

from ullage.monitor.monitor import Monitor
from ullage.ownership.storage import owned_bytes
from ullage.recording.evidence import write_evidence
from ullage.recording.facts import Facts
from ullage.recording.gauge import Gauge, cards, limit_bytes
from ullage.recording.history import FIRST_STEPS, MemoryHistory
from ullage.recording.live import LiveWriter
from ullage.recording.plan import Plan, live_name, report_trouble
from ullage.recording.secret import without_secrets
from ullage.recording.step import StepWatch

_TELL_SECONDS: Final = 1.0
_MOST_EVIDENCE: Final = 3
"""Folders of a process, for the first times that memory runs out; later ones are counted."""
_ROLES_EVERY: Final = 50
_STRIDE: Final = 2
"""At every second step is decided what is recorded, and the monitor reads (`ullage.monitor`)."""
_MOST_FAILURES: Final = 3


class Recorder:
    """Samples, facts and evidence of this process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._gauge = Gauge()
        self._history = MemoryHistory(plan.history, plan.budget_bytes)
        self._monitor = Monitor(log=lambda text: None)
        self._monitor.read_by(self._gauge.latest)
        self._step_watch = StepWatch(self._on_step)
        self._lock = threading.Lock()
        """Of the gauge and the writer. It is never waited for at the end of a step: one sample less is no harm."""
        self._writer: LiveWriter | None = None
        self._pid = os.getpid()
        self._is_over = False
        self._step = 0
        self._sampled = time.monotonic()
        self._ooms = 0
        self._unwritten: tuple[int, int, int] | None = None
        """Device, bytes asked for and free, of a time that memory ran out and nothing was written."""
        self._facts = _facts_of_process()

    def install(self) -> None:
        """Begin: what needs CUDA waits until the script has initialised it."""
        self._step_watch.install()
        torch.cuda._lazy_call(self._on_cuda)

    # ---- moments

    def _on_cuda(self) -> None:
        with _Trouble(self, "nothing is recorded"):
            self._pid, self._facts = os.getpid(), _facts_of_process()  # it may have been forked since torch came
            self._writer = self._open()
            self._gauge.install()
            self._history.install()
            with _Trouble(self, "no evidence will be written where memory runs out", is_end=False):
                torch._C._cuda_attach_out_of_memory_observer(self._on_oom)
            os.register_at_fork(after_in_child=self._leave)
            atexit.register(self._on_exit)
            threading.Thread(target=self._tell_often, name="ullage-recording", daemon=True).start()

    def _on_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._is_over or self._writer is None:
            return
        self._step += 1
        try:
            self._sample(is_end=True)
            self._monitor.step()
            if self._step >= FIRST_STEPS and self._step % _STRIDE:
                return  # what follows may wait a step, and every line costs a step of ten milliseconds its share
            if self._history.is_ours and self._step >= FIRST_STEPS:
                self._gauge.seek_lines()
            if self._step % _ROLES_EVERY == 2:  # the first step makes the optimizer's state
                self._facts = replace(self._facts, roles=owned_bytes(optimizer))
            self._history.look(
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
        # A history that the script keeps itself may have no end, and takes as long as it is.
        if len(self._facts.evidence) < (_MOST_EVIDENCE if not self._history.is_users else 1):
            self._write_evidence()

    def _write_evidence(self) -> None:
        """Write what is known of the last time that memory ran out."""
        if self._unwritten is None:
            return
        (device, asked_bytes, free_bytes), self._unwritten = self._unwritten, None
        with _Trouble(self, "the evidence is not whole", is_end=False):
            name = f"oom-{self._pid}-{len(self._facts.evidence) + 1}"
            self._facts = replace(self._facts, evidence=(*self._facts.evidence, name))
            more = {
                "step": self._step + 1,
                "total_bytes": cards()[device].total_bytes,
                "limit_bytes": limit_bytes(cards()[device]),
                "driver_free_bytes": free_bytes,
                "facts": self._told().to_json(),
            }
            write_evidence(self._plan.folder / name, device=device, asked_bytes=asked_bytes, more=more)
            self._tell()

    def _on_exit(self) -> None:
        if self._is_over:
            return
        with _Trouble(self, "the end is not recorded"):
            kind = getattr(sys, "last_type", None)  # of the error that has ended the script
            if kind is None:
                state = "ended"
            else:
                state = "out of memory" if issubclass(kind, torch.OutOfMemoryError) else "failed"
            self._facts = replace(self._facts, state=state)
            if state == "out of memory":
                self._write_evidence()  # late, and its frames still hold what they held
            self._sample()
            if self._history.is_ours and kind is None:
                self._gauge.seek_lines(is_last=True)
            self._tell()
            self.end()

    def _leave(self) -> None:
        """Be silent in a process that was forked: the file is its parent's."""
        self._is_over = True

    def end(self) -> None:
        """Take away what can be; the observer, which PyTorch has no way to detach, is silent from now on."""
        self._is_over = True
        self._step_watch.end()
        with suppress(Exception):
            self._monitor.__exit__()
        self._history.remove()

    def _give_up(self, what: str, error: Exception) -> None:
        report_trouble(what, error)
        self.end()

    # ---- what is written

    def _open(self) -> LiveWriter:
        path = self._plan.folder / live_name()
        try:
            return LiveWriter(path)
        except OSError as error:
            report_trouble(f"{path} cannot be written", error)
            return LiveWriter(None)

    def _sample(self, *, is_end: bool = False) -> None:
        if self._writer is not None and self._lock.acquire(blocking=False):
            try:
                self._sampled = time.monotonic()
                for sample in self._gauge.read(self._step, is_end=is_end):
                    self._writer.add(sample)
            finally:
                self._lock.release()

    def _tell(self) -> None:
        if self._writer is not None and self._lock.acquire(timeout=_TELL_SECONDS):
            try:
                self._writer.tell(self._told().to_json())
            finally:
                self._lock.release()

    def _told(self) -> Facts:
        history = self._history
        return replace(
            self._facts,
            told=time.time(),
            steps=self._step,
            step_seconds=history.step_seconds,
            cards=tuple(replace(card, limit_bytes=limit_bytes(card)) for card in cards()),
            peaks=tuple(self._gauge.peaks.values()),
            arming=replace(history.arming, is_on=history.is_on, cost=history.cost),
            growth=tuple(str(found) for found in self._monitor.findings if found.is_urgent),
            ooms=self._ooms,
        )

    def _tell_often(self) -> None:
        failures = 0
        while not self._is_over and failures < _MOST_FAILURES:
            try:
                self._tell()  # first: a driver that hangs keeps what follows
                self._gauge.ask_driver()
                if time.monotonic() - self._sampled > _TELL_SECONDS:
                    self._sample()
            except Exception as error:  # evidence is written all the same
                failures += 1
                if failures == _MOST_FAILURES:
                    report_trouble("the driver is asked no more", error)
            time.sleep(_TELL_SECONDS)


class _Trouble:
    """Whatever fails inside is told in one line, and the script goes on."""

    def __init__(self, recorder: Recorder, what: str, *, is_end: bool = True) -> None:
        self._recorder = recorder
        self._what = what
        self._is_end = is_end

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._is_end:
            self._recorder._give_up(self._what, error)
        else:
            report_trouble(self._what, error)
        return True


def _facts_of_process() -> Facts:
    now = time.time()
    return Facts(
        pid=os.getpid(),
        command=without_secrets(sys.orig_argv),
        host=socket.gethostname(),
        started=now,
        told=now,
        rank=_number("RANK"),
        local_rank=_number("LOCAL_RANK"),
        world_size=_number("WORLD_SIZE"),
        torch=torch.__version__,
        is_emulated="ULLAGE_EMULATED_CARD" in os.environ,
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
