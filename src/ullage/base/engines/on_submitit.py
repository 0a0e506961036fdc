"""Run work items as Slurm jobs through submitit, or as local processes.

Work that is submitted within one second becomes one job array. A lost job is submitted a second time.
"""

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.base.engines.engine import (
    EngineError,
    PlainData,
    WorkEngine,
    call_in_process_of_its_own,
    first_line,
    refused,
    was_cancelled,
)
from ullage.base.errors import UsageError
from ullage.base.own_files import OwnFolder

_LOOK_SECONDS: Final = 1.0
_LOCAL_LOOK_SECONDS: Final = 0.2
_TRIES: Final = 2
_AT_ONCE_OF_ARRAY: Final = 256
_DEFAULT_MINUTES: Final = 60
_OF_ULLAGE: Final = frozenset({"array_parallelism"})


@dataclass(slots=True)
class _Piece:
    function: str
    payload: PlainData
    future: "Future[PlainData]"
    job: Any = None
    tries: int = 0


class SubmititEngine(WorkEngine):
    """Runs each work item as a Slurm job, or as a process of submitit's local executor."""

    def __init__(self, kind: str, *, folder: Path, settings: dict[str, str], workers: int) -> None:
        """Start the engine. A job is submitted only when there is work.

        Args:
            kind: "slurm" or "local".
            folder: the folder in which the jobs' input and results are exchanged; every node needs access to it.
            settings: Slurm settings, such as `partition`, named as `sbatch` names them.
            workers: the number of jobs that the local executor runs at once.

        Raises:
            UsageError: submitit is not installed, or Slurm is not available.
        """
        try:
            import submitit
        except ImportError:
            raise UsageError(f"on={kind} needs submitit, which is not installed: pip install 'ullage[slurm]'") from None
        self._home = OwnFolder.make_unique(folder, "search")
        self._is_local = kind == "local"
        try:
            self._executor: Any = submitit.AutoExecutor(folder=self._home.path, cluster=kind)
            self._executor.update_parameters(**_parameters(kind, settings))
        except Exception as error:  # raised by submitit: sbatch is missing, or a setting does not exist
            self._remove_folder()
            raise UsageError(f"on={kind} is not available on this machine: {first_line(error)}") from None
        self.at_once = workers if self._is_local else int(settings.get("array_parallelism", _AT_ONCE_OF_ARRAY))
        self.name = f"submitit's local executor, {workers} at once" if self._is_local else "Slurm"
        self._waiting: list[_Piece] = []
        self._running: list[_Piece] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._has_logs = False
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Add a function call to the next job array."""
        piece = _Piece(function, payload, Future())
        with self._changed:
            if self._is_over:
                return refused()
            self._waiting.append(piece)
            self._changed.notify()
        return piece.future

    def cancel(self) -> None:
        """Cancel all submitit jobs. Remove their folder, unless it contains the log of a lost job."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._changed.notify()
        self._thread.join()
        for piece in self._running:
            _cancel(piece.job)
        for piece in [*self._running, *self._waiting]:
            if not piece.future.done():
                piece.future.set_exception(was_cancelled())
        self._remove_folder()

    def _remove_folder(self) -> None:
        if not getattr(self, "_has_logs", False):
            with suppress(OSError):  # a job that is being cancelled has written another file
                self._home.remove_tree()
        self._home.close()

    def _look(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._running:
                    self._changed.wait_for(lambda: self._is_over or bool(self._waiting))
                if self._is_over:
                    return
                room = self.at_once - len(self._running) if self._is_local else len(self._waiting)
                batch, self._waiting = self._waiting[:room], self._waiting[room:]
            self._start(batch)
            time.sleep(_LOCAL_LOOK_SECONDS if self._is_local else _LOOK_SECONDS)
            for piece in list(self._running):
                if piece.job.done():
                    self._running.remove(piece)
                    self._take(piece)

    def _start(self, batch: list[_Piece]) -> None:
        if not batch:
            return
        try:
            with self._executor.batch():
                for piece in batch:
                    piece.job = self._executor.submit(call_in_process_of_its_own, piece.function, piece.payload)
                    piece.tries += 1
        except Exception as error:  # raised by sbatch
            for piece in batch:
                piece.future.set_exception(EngineError(f"jobs could not be submitted: {first_line(error)}"))
            return
        self._running += batch

    def _take(self, piece: _Piece) -> None:
        try:
            answer = piece.job.result()
        except Exception as error:  # the job's own error, or submitit's if the job was killed
            if piece.tries < _TRIES:
                with self._changed:
                    self._waiting.append(piece)
                return
            self._has_logs = True
            piece.future.set_exception(
                EngineError(
                    f"job {piece.job.job_id} ended without a result: {first_line(error)} "
                    f"(its log is {piece.job.paths.stderr})"
                )
            )
        else:
            piece.future.set_result(answer)


# submitit has parameters for every kind of cluster, and parameters for Slurm alone, which begin with `slurm_`.
def _parameters(kind: str, settings: dict[str, str]) -> PlainData:
    minutes = int(settings.get("time", _DEFAULT_MINUTES))
    if kind == "local":
        return {"timeout_min": minutes}
    chosen: PlainData = {"timeout_min": minutes, "cpus_per_task": 1, "slurm_array_parallelism": _AT_ONCE_OF_ARRAY}
    for name, value in settings.items():
        if name == "cpus_per_task":
            chosen[name] = int(value)
        elif name != "time":
            chosen[f"slurm_{name}"] = int(value) if name in _OF_ULLAGE else value
    return chosen


def _cancel(job: Any) -> None:
    try:
        job.cancel(check=False)
    except Exception:  # the job has ended meanwhile
        return
