"""Predict the memory use of single ranks, and reuse results from the result store."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ullage.base.engines.engine import WorkEngine
from ullage.base.errors import UllageError
from ullage.predicting.layouts.content_key import ContentKeys
from ullage.predicting.layouts.result_store import ResultStore
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.remote import RUN, answer_of, payload_of
from ullage.predicting.prediction.request import Request

RankAnswer = Prediction | UllageError
_ON_TIME = "time"


@dataclass(slots=True)
class RankRuns:
    """Runs each request once, and keeps its result. If a run fails, its error is the result."""

    engine: WorkEngine
    store: ResultStore
    keys: ContentKeys
    progress: Callable[[str], None]
    run_count: int = 0
    """The number of runs of the script."""
    known_count: int = 0
    """The number of results that were found in the result store."""
    _known: dict[str, "Future[RankAnswer]"] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, request: Request) -> "Future[RankAnswer]":
        """Submit a request for a run, and return a future for its result."""
        key = self.keys.key_of(request)
        with self._lock:
            if (known := self._known.get(key)) is not None:
                return known
            answer: Future[RankAnswer] = Future()
            self._known[key] = answer
        kept = self._kept(key)
        if kept is not None:
            with self._lock:
                self.known_count += 1
            answer.set_result(kept)
            return answer
        payload = payload_of(request)
        payload["environment"] = self.keys.counting
        self.engine.submit(RUN, payload).add_done_callback(lambda done: self._take(key, answer, done))
        return answer

    def _kept(self, key: str) -> Prediction | None:
        kept = self.store.get(key)
        if kept is None:
            return None
        try:
            found = answer_of(kept)
        except (TypeError, KeyError, ValueError, AttributeError):  # written by another version, or by another program
            return None
        return found if isinstance(found, Prediction) else None

    def _take(self, key: str, answer: "Future[RankAnswer]", done: "Future[dict[str, Any]]") -> None:
        try:
            told = done.result()
            found = answer_of(told)
        except UllageError as error:
            answer.set_result(error)
            return
        except BaseException as error:  # cancelled
            answer.set_exception(error)
            return
        with self._lock:
            self.run_count += 1
        if isinstance(found, Prediction) and found.ended != _ON_TIME:
            self.store.put(key, told)
        answer.set_result(found)
