"""What frames hold: functions that have not returned, and those that an error has left."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import io
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tests.training.ownership.scenarios.made import inputs, net, tensor, tensors
from tests.training.ownership.scenarios.scenario import End, scenario

CURRENT: contextvars.ContextVar[Tensor] = contextvars.ContextVar("CURRENT")
PER_THREAD = threading.local()


def _fail(mib: int = 4) -> None:
    """Fail as a step does, with tensors in two frames."""
    activations = tensor(mib)

    def inner(scores: Tensor) -> None:
        raise ValueError("a step failed")

    inner(tensor(2))
    del activations


def caught() -> BaseException:
    """Return an error whose frames hold 6 MiB."""
    try:
        _fail()
    except ValueError as error:
        return error
    raise AssertionError


@scenario("an exception that a variable keeps", holder="activations", mib=4)
def exception(end: End) -> None:
    error = caught()
    end(named=(error,))


@scenario("the cause of another exception", holder="activations", mib=4)
def cause(end: End) -> None:
    errors = []
    try:
        try:
            _fail()
        except ValueError as error:
            raise RuntimeError("the run failed") from error
    except RuntimeError as error:
        errors.append(error)
    end(named=(errors,))


@scenario("an except clause that has not ended", holder="activations", kind="traceback", mib=4)
def except_clause(end: End) -> None:
    model = net()
    try:
        _fail()
    except ValueError:
        end(model)


@scenario("sys.last_exc, as the interactive interpreter sets it", holder="sys.last_", kind="traceback", mib=4)
def last_error(end: End) -> None:
    model = net()
    sys.last_exc = sys.last_value = caught()  # type: ignore[assignment]  # since Python 3.12 the first
    sys.last_type, sys.last_traceback = ValueError, sys.last_value.__traceback__
    end(model)


@scenario("an error in a log record", holder="activations", kind="library", mib=4)
def logged_error(end: End) -> None:
    class Keep(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.records: list[logging.LogRecord] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.records.append(record)

    logger = logging.getLogger("scenario")
    logger.propagate = False
    logger.addHandler(Keep())
    try:
        _fail()
    except ValueError:
        logger.exception("the step failed")
    del logger
    end()


def _batches() -> Iterator[Tensor]:
    batch = tensor()
    following = tensor()
    yield batch
    yield following


@scenario("a generator that has not ended", holder="following", mib=2)
def generator(end: End) -> None:
    stream = _batches()
    next(stream)
    end(named=(stream,))


@scenario("a coroutine that waits", holder="request", mib=4)
def coroutine(end: End) -> None:
    async def serve() -> None:
        request = tensor(4)
        await asyncio.sleep(0)
        del request

    serving = serve()
    serving.send(None)
    end(named=(serving,))
    serving.close()


@scenario("an asyncio task that waits", holder="request", mib=4, stays=True)
def task(end: End) -> None:
    async def serve() -> None:
        request = tensor(4)
        await asyncio.sleep(3600)
        del request

    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve())
    loop.run_until_complete(asyncio.sleep(0))
    end(named=(serving,))
    serving.cancel()
    loop.run_until_complete(asyncio.gather(serving, return_exceptions=True))
    loop.close()


@scenario("a variable of another thread", holder="request", mib=4, stays=True)
def thread(end: End) -> None:
    ready, over = threading.Event(), threading.Event()

    def serve() -> None:
        request = tensor(4)
        ready.set()
        over.wait()
        del request

    server = threading.Thread(target=serve, name="server")
    server.start()
    ready.wait(60)
    end()
    over.set()
    server.join()


@scenario("threading.local, in this thread", holder="PER_THREAD", kind="global", mib=4)
def thread_local(end: End) -> None:
    PER_THREAD.buffer = tensor(4)
    end(named=(PER_THREAD,))


@scenario("a context variable", holder="CURRENT", kind="global", mib=4)
def context_variable(end: End) -> None:
    CURRENT.set(tensor(4))
    end(named=lambda: (CURRENT.get(),))


@scenario("the result of a future", holder="future", mib=4)
def future(end: End) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(tensor, 4)
        future.result()
    end(named=(future,))


@scenario("the list that a running loop goes through", holder="no name leads to", kind="running", mib=4, stays=True)
def running_loop(end: End) -> None:
    model = net()
    for number, _ in enumerate([tensor(), tensor(), tensor()]):
        if number == 0:
            end(model)


@scenario("a generator that a running loop goes through", holder="batch", mib=2)
def running_generator(end: End) -> None:
    model = net()
    for batch in tensors(3):
        end(model, named=(batch,))
        break


@scenario("an argument of a function that is running", holder="batch", mib=2)
def caller(end: End) -> None:
    def step(batch: Tensor) -> None:
        end(named=(batch,))

    step(inputs())


@scenario("a traceback without its error", holder="activations", mib=4)
def traceback_alone(end: End) -> None:
    trace = caught().__traceback__
    end(trace)


@scenario("a frame of a function that has ended", holder="activations", mib=4)
def frame_alone(end: End) -> None:
    def run() -> Any:
        activations = tensor(4)
        return sys._getframe() if activations.is_cuda else None

    frame = run()
    end(frame)


@scenario("what a function for a signal holds", holder="handler of signal", kind="global", mib=4, stays=True)
def signal_handler(end: End) -> None:
    def handle(*_: Any, batch: Tensor = tensor(4)) -> None:  # noqa: B008
        batch.zero_()

    signal.signal(signal.SIGUSR1, handle)
    del handle
    end(named=(signal.getsignal(signal.SIGUSR1),))


@scenario("IPython's Out and _", holder="notebook", kind="notebook", mib=6, needs="IPython", stays=True)
def ipython_out(end: End) -> None:
    shell = _shell()
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell("from tests.training.ownership.scenarios.made import tensor\ntensor(2)", store_history=True)
        shell.run_cell("tensor(4)", store_history=True)
    end()


@scenario("IPython's variables", holder="weights", kind="global", mib=4, needs="IPython")
def ipython_names(end: End) -> None:
    shell = _shell()
    shell.run_cell(
        "from tests.training.ownership.scenarios.made import tensor\nweights = tensor(4)", store_history=True
    )
    end(named=lambda: (shell.user_ns["weights"],))


@scenario("the error of IPython's last cell", holder="activations", kind="traceback", mib=4, needs="IPython")
def ipython_error(end: End) -> None:
    shell = _shell()
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell("from tests.training.ownership.scenarios import frame\nframe._fail()", store_history=True)
    end()


def _shell() -> Any:
    """Start a shell of IPython that leaves nothing on the disk."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    return InteractiveShell.instance(config=config)
