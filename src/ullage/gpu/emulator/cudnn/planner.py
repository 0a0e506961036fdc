"""The planner process, which answers queries to cuDNN. It answers from the cache, from the real cuDNN, or from
measurements.

`client/ask_planner.c` starts it with a `Setup` as JSON. The planner then answers the emulated cuDNN of one process over
a socket, and ends with that process. Each request and each reply is a length (four bytes, little endian) followed by a
text.

The first line of a request is its kind. The rest is a query in the form that `tree` describes. The kinds and their
replies are:

    heuristics      -> engines, then a line for each: index;notes;behaviours;knob=value,...
    plan NUMBER     -> workspace BYTES LOW HIGH SOURCE, for that engine of the same query
    config          -> the same, for an engine configuration that the caller has built
    estimate        -> the same, from measurements of similar graphs, if cuDNN cannot be used
    estimate all    -> the same, for all engines that PyTorch may choose, not only the one that cuDNN ranks first

If cuDNN says that an engine cannot run the graph, the reply is `refused STATUS REASON`. If no size is known, the reply
is `unknown REASON`. A reason ends with a description of the graph.
"""

import ctypes
import json
import os
import select
import signal
import socket
import struct
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ullage.gpu.emulator.cudnn.cache import Cache
from ullage.gpu.emulator.cudnn.real import Cudnn, CudnnError, Descriptor
from ullage.gpu.emulator.cudnn.table import estimate
from ullage.gpu.emulator.cudnn.tree import describe, parse

# cuDNN returns these for a query every time. Others, such as "out of memory", are not cached on disk.
_LASTING_STATUSES: Final = range(2000, 4000)
_COMPILATION_FAILED: Final = 4001
_KEPT_QUESTIONS: Final = 64  # The number of queries whose descriptors are kept in memory.
_SOURCE: Final = "cudnn"
_POLL_SECONDS: Final = 1.0
# the time that a client waits for an answer
_ANSWER_SECONDS: Final = 120
_LARGEST_REQUEST_BYTES: Final = 8 << 20
_MOST_FILES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The arguments of a planner process, which asks the real cuDNN for workspace sizes."""

    library: str
    """The path of the real libcudnn.so.9. Empty: no installed cuDNN can build plans without a GPU."""
    why_not: str
    """The reason why no installed cuDNN can build plans without a GPU."""
    version: int
    before: tuple[str, ...]
    """Libraries to load before cuDNN, because cuDNN opens them by name."""
    symbols: tuple[str, ...]
    """Libraries to load before cuDNN, because cuDNN looks up their functions in the process."""
    without_compiler: str
    """The reason to report if cuDNN's compiler (NVRTC) is missing. Empty: NVRTC is installed."""
    capability: int
    """The GPU's compute capability as a number: 86 for 8.6."""
    device_json: str
    cache: str
    """The folder that caches cuDNN's answers. Empty: answers are not cached."""

    @property
    def tag(self) -> str:
        """The name of the cache for a cuDNN version. It ends with "-nvrtc" if cuDNN can compile kernels."""
        return f"{self.version}{'' if self.without_compiler else '-nvrtc'}"

    def to_json(self) -> str:
        """Return this setup as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Setup":
        """Read the setup from JSON text."""
        data = json.loads(text)
        return cls(**{**data, "before": tuple(data["before"]), "symbols": tuple(data["symbols"])})


class Planner:
    """Answers queries to cuDNN from the cache. Queries without a cached answer go to the real cuDNN."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        keeps = bool(setup.cache and setup.library)
        self._cache = Cache(Path(setup.cache), tag=setup.tag, device_json=setup.device_json) if keeps else None
        self._cudnn: Cudnn | None = None
        self._broken = setup.why_not
        self._asked: OrderedDict[str, list[Descriptor]] = OrderedDict()

    def answer(self, request: str) -> str:
        """Return the answer to a query that the emulated cuDNN sends. This method never raises an exception."""
        if (kept := self._cache.get(request) if self._cache else None) is not None:
            return kept
        wanted, _, question = request.partition("\n")
        try:
            answer = self._answer(wanted.split(), question)
        except CudnnError as error:
            if error.status == _COMPILATION_FAILED and self._setup.without_compiler:
                return f"unknown {self._setup.without_compiler}\n"
            answer = f"refused {error.status} {error}; {_words(question)}\n"
            if error.status not in _LASTING_STATUSES:
                return answer
        except Exception as error:  # A query may contain anything, and the planner must be able to answer the next one.
            return f"unknown {' '.join(str(error).split())}; {_words(question)}\n"
        if self._cache and not answer.startswith("unknown") and not answer.endswith(" table\n"):
            self._cache.put(request, answer)
        return answer

    def _answer(self, wanted: list[str], question: str) -> str:
        if wanted[:1] == ["estimate"] and wanted[1:] in ([], ["all"]):
            return self._estimate(question, of_all_engines=len(wanted) > 1)
        cudnn = self._library()
        if cudnn is None:
            return f"unknown {self._broken}\n"  # The same text for every graph, so that it is reported once.
        match wanted:
            case ["heuristics"]:
                found = cudnn.candidates(parse(question))
                if not found:
                    raise ValueError(
                        self._setup.without_compiler
                        or "cuDNN has no engine for the graph: with a real GPU, this is an error"
                    )
                self._keep(question, [config for _, config in found])
                lines = [
                    ";".join(
                        [
                            str(engine.index),
                            ",".join(map(str, engine.notes)),
                            ",".join(map(str, engine.behaviours)),
                            ",".join(f"{kind}={value}" for kind, value in engine.knobs),
                        ]
                    )
                    for engine, _ in found
                ]
                return "\n".join([f"engines {len(lines)}", *lines]) + "\n"
            case ["plan", number]:
                if question not in self._asked:
                    self._keep(question, [config for _, config in cudnn.candidates(parse(question))])
                size = cudnn.workspace_bytes(self._asked[question][int(number)])
            case ["config"]:
                size = cudnn.workspace_bytes(cudnn.build(parse(question)))
            case _:
                raise ValueError(f"a request begins with {' '.join(wanted)[:40]!r}")
        return f"workspace {size} {size} {size} {_SOURCE}\n"

    # Estimates are not cached, so that a newer table of measurements takes effect.
    def _estimate(self, question: str, *, of_all_engines: bool) -> str:
        found = estimate(
            parse(question),
            version=self._setup.version,
            capability=self._setup.capability,
            of_all_engines=of_all_engines,
        )
        if found is None:
            return f"unknown nothing similar was measured; {_words(question)}\n"
        # Among all engines, some need more memory than any GPU has; PyTorch tries the next engine when memory is short.
        most = max(found.expected_bytes, json.loads(self._setup.device_json).get("totalGlobalMem", 0))
        return f"workspace {found.expected_bytes} {found.low_bytes} {min(found.high_bytes, most)} table\n"

    def _library(self) -> Cudnn | None:
        if self._cudnn is None and not self._broken:
            try:
                for path in self._setup.symbols:
                    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                for path in self._setup.before:
                    ctypes.CDLL(path)
                cudnn = Cudnn(Path(self._setup.library), self._setup.device_json)
                if cudnn.version != self._setup.version:
                    said = f"the version is {self._setup.version} in its header, but {cudnn.version} in the library"
                    raise CudnnError(0, said)
                self._cudnn = cudnn
            except (OSError, CudnnError, AttributeError) as error:
                self._broken = f"cuDNN cannot be used: {' '.join(str(error).split())}"
        return self._cudnn

    def _keep(self, question: str, configs: list[Descriptor]) -> None:
        self._asked[question] = configs
        while len(self._asked) > _KEPT_QUESTIONS:
            self._asked.popitem(last=False)


def _words(question: str) -> str:
    try:
        return describe(parse(question))
    except Exception:  # The description is only an addition to a reason that is already known.
        return "a graph that cannot be read"


# ---- the process


def serve(planner: Planner, line: socket.socket, client: int) -> None:
    """Answer requests until the client process has ended.

    Args:
        planner: the planner that answers.
        line: the socket for requests and replies.
        client: the process ID of the client. A closed socket does not show that the client has ended, because the
            client's forks also hold the other end of the socket.
    """
    while True:
        while not select.select([line], [], [], _POLL_SECONDS)[0]:
            if _has_ended(client):
                return
        request = _read(line)
        if request is None:
            return
        signal.alarm(_ANSWER_SECONDS)
        reply = planner.answer(request).encode(errors="replace")
        signal.alarm(0)
        line.sendall(struct.pack("<I", len(reply)) + reply)


def _has_ended(client: int) -> bool:
    try:
        return Path(f"/proc/{client}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _read(line: socket.socket) -> str | None:
    head = _exactly(line, 4)
    if head is None:
        return None
    (size,) = struct.unpack("<I", head)
    body = _exactly(line, size) if size <= _LARGEST_REQUEST_BYTES else None
    return None if body is None else body.decode(errors="replace")


def _exactly(line: socket.socket, size: int) -> bytes | None:
    read = bytearray()
    while len(read) < size:
        more = line.recv(size - len(read))
        if not more:
            return None
        read += more
    return bytes(read)


def main(setup_json: str, client: int) -> None:
    """Answer a client's cuDNN queries over the socket at standard input.

    The process first sends one byte, which means that it is ready.
    """
    os.setsid()  # Ctrl-C does not end the planner; it ends when its client does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.chdir("/")
    # A reader that waits for the end of an inherited pipe would otherwise wait for the planner.
    os.closerange(3, _MOST_FILES)
    with socket.socket(fileno=os.dup(0)) as line, suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        line.sendall(b"\n")
        serve(Planner(Setup.of_json(setup_json)), line, client)
    os._exit(0)
