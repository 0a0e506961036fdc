"""A pool of processes that read snapshots in parallel, with a common memory budget."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final

from ullage.base.child_process import ChildProcess, new_pipe
from ullage.base.engines.engine import EngineError, WorkEngine
from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import RankSummary

MOST_WORKERS: Final = 8
_PIECES_A_WORKER: Final = 4
# The largest number of ranks in one task for an execution engine. An engine's workers start a process for each task, so
# small tasks would need many starts.
_MOST_IN_A_PIECE: Final = 64
# The memory in bytes that all reader processes together may use. A file that needs more is read alone.
_BUDGET_BYTES: Final = 1 << 30
# The memory that is needed to read a file, divided by the size of the file. The first value is for an uncompressed
# file, the second for a compressed one.
_TIMES: Final = {False: 6, True: 60}


def default_workers() -> int:
    """Return the default number of reader processes: one per available core, but at most `MOST_WORKERS`."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def read_ranks(
    files: Sequence[RankFile], *, workers: int, is_whole: bool = False, done: Callable[[int], None]
) -> dict[str, RankSummary | str]:
    """Read several snapshots. Return a dict from each path to the rank's memory figures, or to an error message.

    Args:
        files: the snapshots to read.
        workers: the number of processes that read at the same time.
        is_whole: whether each snapshot is explained too.
        done: called with the number of files that have been read.
    """
    workers = max(1, min(workers, len(files)))
    budget = _Budget(_BUDGET_BYTES)
    found: dict[str, RankSummary | str] = {}
    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        readers = _Readers(stack)
        futures = {pool.submit(_read, file, readers, budget, is_whole=is_whole): file for file in files}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                found[str(futures[future].path)] = future.result()
                done(number)
        except BaseException:
            readers.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return found


def read_ranks_on(
    engine: WorkEngine, files: Sequence[RankFile], *, is_whole: bool = False, done: Callable[[int], None]
) -> dict[str, RankSummary | str]:
    """Read snapshots on the workers of an execution engine. The workers must see the files at the same paths.

    Raises:
        EngineError: the engine no longer responds.
    """
    size = max(1, min(_MOST_IN_A_PIECE, len(files) // (_PIECES_A_WORKER * engine.at_once)))
    pieces = [files[first : first + size] for first in range(0, len(files), size)]
    found: dict[str, RankSummary | str] = {}
    futures = {
        engine.submit(
            "ullage.explaining.fleet.reader:answers",
            {"paths": [str(file.path.absolute()) for file in piece], "is_whole": is_whole},
        ): piece
        for piece in pieces
    }
    for future in as_completed(futures):
        piece = futures[future]
        try:
            told = future.result()["answers"]
        except EngineError as error:  # The remaining files are still read.
            told = [{"error": f"{file.path} was not read: {error}"} for file in piece]
        found |= {str(file.path): _told(answer) for file, answer in zip(piece, told, strict=True)}
        done(len(found))
    return found


def _told(answer: dict[str, Any]) -> RankSummary | str:
    return str(answer["error"]) if "error" in answer else RankSummary.from_json(answer["summary"])


def _read(file: RankFile, readers: "_Readers", budget: "_Budget", *, is_whole: bool) -> RankSummary | str:
    is_packed = file.path.suffix in (".gz", ".zip")
    with budget.of(file.size_bytes * _TIMES[is_packed]), readers.one() as reader:
        answer = reader.ask({"path": str(file.path), "is_whole": is_whole})
    if answer is None:
        return f"{file.path} cannot be read: the process that read it was killed, perhaps because memory ran out"
    return _told(answer)


class _Reader:
    def __init__(self) -> None:
        requests_end, requests = new_pipe()
        answers, answers_end = new_pipe()
        try:
            self.process = ChildProcess(
                "ullage.explaining.fleet.reader",
                [str(requests_end), str(answers_end)],
                inherited=(requests_end, answers_end),
                environment=dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                with_flags=True,
            )
        finally:
            os.close(requests_end)
            os.close(answers_end)
        self._requests: IO[str] = os.fdopen(requests, "w", encoding="utf-8")
        self._answers: IO[str] = os.fdopen(answers, encoding="utf-8")
        # The kernel may report the end of the process slightly after it closes the pipe.
        self.is_broken = False

    def ask(self, request: dict[str, object]) -> dict[str, Any] | None:
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            self.is_broken = True
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.end()
        for pipe in (self._requests, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:
                continue


class _Readers:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._waiting: list[_Reader] = []
        self._lock = threading.Lock()
        self._is_stopped = False

    @contextmanager
    def one(self) -> Iterator[_Reader]:
        with self._lock:
            reader = self._waiting.pop() if self._waiting else None
            if reader is None:
                reader = _Reader()
                self._stack.callback(reader.close)
        yield reader
        if not reader.is_broken:
            with self._lock:
                self._waiting.append(reader)

    def stop(self) -> None:
        with self._lock:
            self._stack.close()


# A reader that needs more than the whole budget waits until no other reader runs.
class _Budget:
    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size_bytes: int) -> Iterator[None]:
        size_bytes = min(size_bytes, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._used + size_bytes <= self._total)
            self._used += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used -= size_bytes
                self._changed.notify_all()
