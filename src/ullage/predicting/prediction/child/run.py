"""The process in which the script runs: emulate, watch, run, tell the parent.

Started by `prediction.process.listener` with CHANNEL LIFELINE REQUEST as arguments. Messages go to the file descriptor
CHANNEL, one JSON object a line: {"event": "start" | "import" | "imported" | "step" | "further" | "stopping" | "result",
...}.
LIFELINE says when the parent is gone. The script's own output is untouched, and torch is imported when the script
imports it.
"""

import builtins
import faulthandler
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ullage.base.child_process import run_exit_handlers, tie_to_parent
from ullage.base.errors import UllageError, UsageError, ValuesReadError
from ullage.gpu.emulator import library
from ullage.gpu.emulator.emulate import Emulation, emulate
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.gpus import find_gpu
from ullage.gpu.tracing.compiled import hurry_workers
from ullage.gpu.tracing.edited_source import EditedSources
from ullage.gpu.tracing.journal import EntryKind, Journal
from ullage.gpu.tracing.source import callers_line
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.predicting.made_up.install import install as install_made_up
from ullage.predicting.prediction.child.allocator_history import AllocatorHistory
from ullage.predicting.prediction.child.channel import Channel
from ullage.predicting.prediction.child.enough_steps import EnoughSteps
from ullage.predicting.prediction.child.import_choices import (
    check_allocator_settings,
    choose_allocator_settings,
    choose_cards,
)
from ullage.predicting.prediction.child.training_inspection import TrainingInspection
from ullage.predicting.prediction.child.whereabouts import Whereabouts
from ullage.predicting.prediction.command.notebook import run_notebook
from ullage.predicting.prediction.command.words import NOTEBOOK
from ullage.predicting.prediction.data.run_result import Outcome, RunResult
from ullage.predicting.prediction.host.meter import HostMeter
from ullage.predicting.prediction.measurement.measure import measure
from ullage.predicting.prediction.measurement.placement import addresses_count
from ullage.predicting.prediction.observation import ending
from ullage.predicting.prediction.ranks import lone_rank
from ullage.predicting.prediction.ranks.lone_post import LARGEST_TEAM, LonePost
from ullage.predicting.prediction.request import LEAVE_SIGNAL, STOP_SIGNAL, ChildRequest
from ullage.recorded.settings import VARIABLES

if TYPE_CHECKING:
    from ullage.gpu.values.reads import Reads
    from ullage.gpu.values.start import Values
    from ullage.predicting.epoch.use import EpochUse
    from ullage.predicting.prediction.avoidable.diagnosis import AvoidableSearch
    from ullage.predicting.prediction.child.epoch_run import EpochRun
    from ullage.predicting.prediction.observation.observer import Observer

_STEPS_WITH_VALUES: Final = 2
"""The number of steps without a read that decides after which values are no longer followed; a later one starts the run
anew."""
_EVALUATION_SECONDS: Final = 10.0
"""The time, beside that of the steps, for an evaluation that follows at once on the last of them."""


class StopScript(BaseException):
    """Unwind the script: enough steps, or enough time. Not an Exception, so that a script does not handle it."""


class Run:
    """One run of a script, from `prepare` to its result."""

    def __init__(self, request: ChildRequest, channel: Channel) -> None:
        self._request = request
        self._channel = channel
        self._journal = Journal()
        self._observer: Observer | None = None
        self._values: Values | None = None
        self._inspection: TrainingInspection | None = None
        self._enough: EnoughSteps | None = None
        self._history: AllocatorHistory | None = None
        self._whereabouts: Whereabouts | None = None
        self._emulation: Emulation | None = None
        self._sent_at_ends: list[int] = []
        self._is_over = False
        self._has_gone_on = False
        self._started = 0.0
        self._import_seconds = 0.0
        self._step_times: list[float] = []
        self._notes: list[str] = []
        self._epoch: EpochRun | None = None
        self._epoch_use: EpochUse | None = None
        self._exit = os._exit
        self._post: LonePost | None = None
        self._meter = HostMeter(self._journal)
        self._edited = EditedSources(request.edited)

    # ---- before the script

    def prepare(self) -> None:
        """Emulate the card, and wait for the script to import torch."""
        request = self._request
        self._torch = find_torch()
        self._emulation = emulate(
            find_gpu(request.gpu, arch=request.arch),
            total_memory_bytes=request.total_memory_bytes,
            context_bytes=request.context_bytes,
            cudnn_workspace_bytes=request.cudnn_workspace_bytes,
            placement=request.placement,
            count=request.count,
            values="off" if request.begins_without_values else request.values.mode,
            values_seed=request.values.seed,
            routing=request.values.routing,
        )
        if request.world_size:
            lone_rank.announce(request.rank, request.world_size)
        self._watch()
        install_made_up(request.made_up, self._notes.append)
        self._edited.install()
        ImportWatch("torch", before=self._before_import, after=self._after_import).install()

    def _watch(self) -> None:
        """Begin the journal, and be asked before this process ends or becomes two."""
        if self._request.eager:  # the newer and the older name of the same switch
            os.environ |= {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
        self._environment = {name: os.environ.get(name) for name in VARIABLES}
        self._journal.open()
        self._meter.open()
        os.register_at_fork(after_in_child=self._leave)
        os._exit = self._exit_at_once
        self._on_signals()

    def _on_signals(self) -> None:
        signal.signal(STOP_SIGNAL, self._on_time)
        signal.signal(LEAVE_SIGNAL, self._on_leave)

    def _before_import(self) -> None:
        self._channel.send("import")
        self._meter.look()
        self._import_began = time.perf_counter()
        assert self._emulation is not None
        choose_allocator_settings(self._request.alloc_conf, self._environment, self._notes.append)
        choose_cards(self._emulation, self._torch, self._notes.append)

    def _after_import(self, torch: ModuleType) -> None:
        self._meter.look()
        with self._meter.own_part():
            self._begin_to_observe(torch)
        self._channel.send("imported")

    def _begin_to_observe(self, torch: ModuleType) -> None:
        from ullage.gpu.values.post import StorePost
        from ullage.gpu.values.start import current
        from ullage.predicting.prediction.observation.observer import Observer

        self._values = current()
        if self._request.begins_without_values:
            self._values.wait_for_reads(self._request.values, self._begin_anew)
        self._observer = Observer(self._journal, self._values.reads, self._on_step, self._on_recount)
        self._observer.install()
        self._enough = EnoughSteps(self._request, self._journal, self._observer)
        self._inspection = TrainingInspection(self._request, self._journal, self._observer, self._values)
        if self._values.messages is not None and isinstance(self._values.messages.post, StorePost):
            self._values.messages.post.without = self._end_with_others
        self._whereabouts = Whereabouts(self._channel, self._journal, self._values.reads)
        self._whereabouts.begin(torch)
        if self._request.world_size:
            lone_rank.stand_in_for_the_others(torch)
            self._hear_of_others()
        lone_rank.run_spawned_here(torch, self._request.rank, self._notes.append)
        self._inspection.make_changes(self._notes.append)
        self._keep_history(torch)
        self._watch_epoch()
        try:
            check_allocator_settings(self._request.alloc_conf, torch)
        except UsageError as error:
            self._refuse(error)
        self._import_seconds = time.perf_counter() - self._import_began
        torch.cuda._lazy_call(self._meter.look)

    def _hear_of_others(self) -> None:
        """Have what other ranks send come from the exchange of messages, and what this one sends go there."""
        request, values = self._request, self._values
        if request.exchange is None or values is None or values.messages is None:
            return
        self._post = LonePost(request.exchange, request.variant, request.rank, request.helps, self._channel.send)
        self._post.largest_team = LARGEST_TEAM if request.asks_all else 0
        self._post.connect()
        values.messages.post = self._post

    def _refuse(self, error: UllageError) -> NoReturn:
        self._is_over = True
        self._channel.send("refused", text=str(error), type=type(error).__name__)
        self._stop()

    def _begin_anew(self) -> None:
        """Have the script run anew with values; it is told where something is read, in any thread."""
        if self._is_over:
            return
        self._is_over = True
        self._channel.send("refused", text="values are read", type=ValuesReadError.__name__)
        os.kill(os.getpid(), LEAVE_SIGNAL)  # where PyTorch asks for the number no error gets through to the script

    def _keep_history(self, torch: Any) -> None:
        """Have PyTorch record requests, with what the journal does not have."""
        request = self._request
        with_stacks = not self._journal.stacks.are_recorded or request.snapshot is not None
        # Frees tell what another placement would do: only where addresses decide.
        with_frees = addresses_count(self._torch.version) or request.batches is not None or request.diagnose
        self._history = AllocatorHistory(torch, with_stacks=with_stacks, with_frees=with_stacks or with_frees)
        self._meter.follow(self._values, history_entries=self._history.entries_of_a_block)

    def _watch_epoch(self) -> None:
        """Follow the loader that feeds training, where an epoch is asked for."""
        if self._request.batches is None or self._observer is None or self._history is None:
            return
        from ullage.predicting.prediction.child.epoch_run import EpochRun

        assert self._emulation is not None
        self._epoch = EpochRun(
            self._request,
            self._journal,
            self._observer,
            self._emulation,
            clear_history=self._history.clear,
            finish=self._finish_epoch,
            progress=lambda text: self._channel.send("epoch", text=text),
        )

    def _finish_epoch(self) -> NoReturn:
        self._finish(Outcome(kind="steps"))
        raise StopScript

    # ---- the script

    def run(self) -> None:
        """Run the script as `python SCRIPT ARGS` would, until it ends, fails, or is stopped."""
        self._started = time.perf_counter()
        try:
            self.prepare()
            self._channel.send("start")
            self._execute()
            self._wait_for_threads()
            self._finish(self._end())
        except StopScript:
            pass
        except UllageError as error:
            if self._emulation is not None:
                self._finish_failed(error)
            else:
                self._channel.send("refused", text=str(error), type=type(error).__name__)
        except SystemExit as error:
            if error.code is None or (isinstance(error.code, int) and not error.code):
                self._finish(self._end())
            else:
                if not isinstance(error.code, int) and sys.stderr is not None:
                    print(error.code, file=sys.stderr, flush=True)
                self._finish_failed(error)
        except BaseException as error:
            self._finish_failed(error)

    def _execute(self) -> None:
        script = self._request.script
        sys.argv = [self._request.name, *self._request.arguments]
        if not sys.flags.safe_path:
            sys.path.insert(0, str(Path(script).resolve().parent))
        module = ModuleType("__main__")
        loader = SourceFileLoader("__main__", script)
        vars(module).update(__file__=script, __builtins__=builtins, __loader__=loader, __cached__=None)
        sys.modules["__main__"] = module  # for good: pickled classes, spawned processes and exit handlers look there
        if script.endswith(NOTEBOOK):
            run_notebook(Path(script), module)
            return
        source: str | bytes | None = self._edited.text_of(script)
        if source is None:
            with io.open_code(script) as stream:
                source = stream.read()
        exec(compile(source, script, "exec", dont_inherit=True), vars(module))

    def _wait_for_threads(self) -> None:
        """A script whose threads train has not ended when its last line has."""
        if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
            threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself does next

    def _leave(self) -> None:
        """Be an ordinary process after a fork: the run is the parent's."""
        self._is_over = True
        self._channel.close()
        self._journal.close()
        os._exit = self._exit
        if self._observer is not None:
            self._observer.remove()
        if self._history is not None:
            self._history.give_back()
        if self._epoch is not None:
            self._epoch.watch.leave()

    # ---- the ends of a run

    def _stop(self) -> NoReturn:
        """Do nothing more of the script."""
        raise StopScript

    def _end(self) -> Outcome:
        """Return the outcome of a process that ends without an error."""
        return ending.end_outcome(self._gave_up())

    def _on_step(self, number: int) -> None:
        import torch

        self._step_times.append(time.perf_counter())
        self._meter.look()
        assert self._enough is not None
        self._enough.note_step(torch)
        self._sent_at_ends.append(library.communicators().sent_bytes)
        self._channel.send("step", step=number)
        if self._whereabouts is not None:
            self._whereabouts.note_step()
        self._look_after_values(number)
        if self._epoch is not None and not self._is_over:
            self._epoch.watch.step_ended()
            if self._epoch.watch.wants_more(number):
                return
        if not self._is_over and self._enough.is_reached(number) and not self._goes_on():
            self._finish(Outcome(kind="steps"))
            self._stop()

    def _end_with_others(self) -> None:
        """End where another rank has had enough and tells nothing more, if this one has taken its steps too."""
        if not self._is_over and len(self._step_times) >= self._request.steps:
            self._finish(Outcome(kind="steps"))
            self._stop()

    def _on_recount(self) -> None:
        """Forget the steps that were counted by backward passes: an optimizer counts them from now on."""
        self._step_times.clear()
        self._sent_at_ends.clear()
        if self._enough is not None:
            self._enough.reserved_at_ends.clear()

    def _goes_on(self) -> bool:
        """Go on through an evaluation that comes at once, for about as long as the steps took; once."""
        if self._has_gone_on or self._enough is None or not self._enough.evaluation_follows():
            return False
        self._has_gone_on = True
        so_far = time.perf_counter() - self._started - self._import_seconds
        self._channel.send("further", seconds=so_far + _EVALUATION_SECONDS)
        return True

    def _look_after_values(self, number: int) -> None:
        """Stop to work values out where the first steps have read none that decide: it slows every operation down."""
        values = self._values
        if values is None or values.choice.mode != "auto" or number != _STEPS_WITH_VALUES or self._search is not None:
            return
        is_unused = values.messages is None or not values.messages.are_used
        if values.is_on and values.reads.are_logged_only and is_unused:
            values.stop()

    def _on_time(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over:
            self._finish(Outcome(kind="steps" if self._has_gone_on else "time"))
            self._stop()

    def _on_leave(self, number: int, frame: FrameType | None) -> None:
        signal.signal(LEAVE_SIGNAL, signal.SIG_IGN)
        self._is_over = True
        self._stop()

    def _gave_up(self) -> ending.SeenOom | None:
        """The last time that memory ran out, if no step ended and nothing was allocated after it."""
        if self._observer is None or not self._observer.ooms:
            return None
        last, ends = self._observer.ooms[-1], self._observer.step_ends
        went_on = bool((self._journal.entries()[last.index + 1 :]["kind"] == EntryKind.ALLOC).any())
        return None if went_on or (ends and ends[-1] > last.index) else last

    def _exit_at_once(self, status: int) -> NoReturn:
        """Stand in for os._exit, which leaves no later moment to tell the result."""
        if status:
            self._finish(ending.exit_outcome(status, callers_line(), self._gave_up()))
        else:
            self._finish(self._end())
        self._exit(status)

    def _finish_failed(self, error: BaseException) -> None:
        self._finish(ending.error_outcome(error, self._gave_up()))

    def _finish(self, outcome: Outcome) -> None:
        """Send the result, once: whatever the script does after it is not measured."""
        if self._is_over:
            return
        self._is_over = True
        if self._whereabouts is not None:
            self._whereabouts.end()
        self._meter.look()  # before anything is put together, which takes memory
        if self._values is not None and self._values.messages is not None:
            self._values.messages.end()
        if outcome.kind == "time":
            self._channel.send("stopping")
        try:
            if self._epoch is not None:
                self._epoch_use = self._epoch.foresee(self._torch.version, self._notes.append)
            self._channel.send("stopping")
            result = self._message(self._result(outcome))
        except Exception:
            self._channel.send("broken", traceback=traceback.format_exc())
        else:
            self._channel.send(**result)

    def _message(self, result: RunResult) -> dict[str, Any]:
        return {"event": "result", "result": result.to_json()}

    def _facts(self, outcome: Outcome) -> RunResult:
        """Return what is known of the run beside its memory."""
        if self._step_times and self._observer is not None and not self._observer.has_optimizer:
            self._notes.append("no optimizer of torch.optim was made: steps are counted by backward passes")
        if self._post is not None:
            self._notes += self._post.notes()
        times = [self._started + self._import_seconds, *self._step_times]
        result = RunResult(
            outcome=outcome,
            torch=self._torch.version,
            notes=self._notes,
            imported=self._observer is not None,
            import_seconds=self._import_seconds,
            world_size=self._request.world_size,
            rank=self._request.rank,
            step_seconds=[round(b - a, 4) for a, b in pairwise(times)],
            epoch=self._epoch_use,
            sent_bytes_per_step=_last_rise(self._sent_at_ends),
        )
        return result if self._inspection is None else self._inspection.with_changes(result)

    def _result(self, outcome: Outcome) -> RunResult:
        if outcome.kind == "ended" and self._observer is not None:
            self._observer.end_backward_step()  # no forward pass has come after the last
        result = self._facts(outcome)
        if self._observer is None:
            result = replace(result, host=self._meter.figures())
            return (
                replace(result, snapshot_error="the script did not import torch") if self._request.snapshot else result
            )
        self._observer.note_everything()
        self._journal.close()
        result = replace(result, recomputed_share=self._observer.recomputed_share)
        if self._inspection is not None:
            result = self._inspection.with_training(result)
        gc.disable()  # nothing of the script's is measured any more, and the result is made of very many small objects
        self._observer.remove()
        if self._history is not None:
            self._history.give_back()
        emulation, values = self._emulation, self._values
        assert emulation is not None
        assert values is not None
        result = replace(
            result,
            missed_values=values.has_stopped and _has_missed(values.reads, outcome),
            largest_not_asked=values.messages.largest_not_asked if values.messages is not None else 0,
            host=None
            if values.choice.mode == "all"
            else self._meter.figures(),  # "all": the card's memory is the host's
        )
        if self._search is not None:
            self._search.end()
        values.stop()
        return measure(
            result,
            self._journal,
            self._observer,
            self._enough.reserved_at_ends if self._enough is not None else [],
            snapshot=self._request.snapshot,
            picture=self._request.picture,
            emulation=emulation,
            values=values,
            history=None if self._epoch is None else self._epoch.watch.ledger.history(),
            diagnosis=self._search,
        )

    @property
    def _search(self) -> "AvoidableSearch | None":
        """What looks for what is avoidable, where that is asked for."""
        return self._inspection.search if self._inspection is not None else None


def _last_rise(counts: list[int]) -> int | None:
    """Return by how much a count rose in the last step: the first may have begun with what is sent only once."""
    return counts[-1] - (counts[-2] if counts[1:] else 0) if counts else None


def _has_missed(reads: "Reads", outcome: Outcome) -> bool:
    """Tell whether what was read as zero may have decided something: a branch or a size, or that the script failed."""
    return not reads.are_logged_only or (outcome.kind == "error" and bool(reads.counts))


def main() -> None:
    """Run the request in argv and send its result."""
    tie_to_parent()
    if sys.stderr is not None:
        faulthandler.enable()
    process = os.getpid()
    exit_process = os._exit

    def end() -> None:
        hurry_workers()
        run_exit_handlers()
        exit_process(0)

    def end_in_the_middle(*_: object) -> None:
        if os.getpid() == process:
            end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the script forked ends as it would without us
        os.kill(os.getpid(), signal.SIGTERM)

    request = ChildRequest.from_json(json.loads(sys.argv[3]))
    if request.helps:
        signal.signal(signal.SIGTERM, end_in_the_middle)  # where nobody waits for its messages any more
    Run(request, Channel(int(sys.argv[2]))).run()
    if os.getpid() == process:  # not what the script forked
        end()
