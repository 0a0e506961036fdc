"""Run work items on a Ray cluster. Ray repeats a work item if a worker or a node is lost."""

import logging
import os
import threading
from concurrent.futures import Future
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

_RETRIES: Final = 2
# Ray 2.60 sends its authentication token to a cluster at a given address only if this variable is set.
_AUTH: Final = "RAY_AUTH_MODE"


class RayEngine(WorkEngine):
    """Runs each work item as a Ray task on one CPU core."""

    def __init__(self, address: str | None) -> None:
        """Connect to a cluster.

        Args:
            address: `ray://HOST:PORT` of Ray's client server, or `HOST:PORT`. None: the address in `RAY_ADDRESS`, else
                the cluster that was started on this machine, else a new one for this process alone.

        Raises:
            UsageError: Ray is not installed.
            EngineError: the cluster does not exist or does not respond.
        """
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # GPUs are emulated, so Ray must not hide them
        try:
            import ray
        except ImportError:
            raise UsageError("on=ray needs Ray, which is not installed: pip install 'ullage[ray]'") from None
        self._ray: Any = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises errors of many classes
            where = address or "this machine"
            hint = (
                ""
                if _AUTH in os.environ
                else f"; a cluster that requires a token needs {_AUTH}=token in this environment"
            )
            raise EngineError(f"Ray does not respond at {where}: {first_line(error)}{hint}") from None
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.name = f"Ray, {cores} cores on {_count(len(_nodes(ray)), 'node')}"
        self.at_once = max(1, cores)
        self._task: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(call_in_process_of_its_own)
        self._running: dict[Any, Future[PlainData]] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Submit a function call as a Ray task."""
        future: Future[PlainData] = Future()
        with self._lock:
            if self._is_over:  # Ray would start a new cluster
                return refused()
            try:
                reference = self._task.remote(function, payload)
            except Exception as error:  # the connection or the cluster is lost
                future.set_exception(EngineError(f"Ray does not accept more work: {first_line(error)}"))
                return future
            self._running[reference] = future
        reference.future().add_done_callback(lambda done: self._ended(reference, future, done))
        return future

    def cancel(self) -> None:
        """Kill the running Ray tasks, and disconnect from the cluster."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            running = list(self._running)
        for reference in running:
            try:
                self._ray.cancel(reference, force=True)
            except Exception:  # the task or the cluster has ended meanwhile
                continue
        self._ray.shutdown()
        with self._lock:
            futures = list(self._running.values())
        for future in futures:
            if not future.done():
                future.set_exception(was_cancelled())

    def _ended(self, reference: Any, future: "Future[PlainData]", done: "Future[PlainData]") -> None:
        with self._lock:
            self._running.pop(reference, None)
        if future.done():
            return
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(EngineError(f"Ray lost a task: {first_line(error)}"))


def _nodes(ray: Any) -> list[Any]:
    return [node for node in ray.nodes() if node.get("Alive")]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
