"""The planner process: it answers questions about cuDNN from the cache, from the library, or from measurements.

Started by `client/ask_planner.c` with a `Setup` as JSON, it answers the emulated cuDNN of one process over a socket,
and ends with that process. A request and a reply are a length (four bytes, little endian) and a text.

A request's first line is what is wanted, the rest a question as in `tree`:

    heuristics      -> engines, then a line for each: index;notes;behaviours;knob=value,...
    plan NUMBER     -> workspace BYTES LOW HIGH SOURCE, of that engine of the same question
    config          -> the same, of an engine configuration that the caller has put together
    estimate        -> the same, of what was measured of graphs like it, for where cuDNN cannot be asked
    estimate all    -> the same, of all engines that PyTorch may take, not of the one that cuDNN ranks first

and in place of each `refused STATUS REASON`, where cuDNN says that an engine cannot run it, or `unknown REASON`, where
nothing can be said. Reasons end with what was asked for, in words.
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

_LASTING_STATUSES: Final = range(2000, 4000)
"""Status codes that never change for a question, such as bad parameters or not supported. Others, such as no memory,
are not cached on disk."""
_COMPILATION_FAILED: Final = 4001
_KEPT_QUESTIONS: Final = 64  # with their descriptors, in memory
_SOURCE: Final = "cudnn"
_POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 120
"""Timeout of one answer; a client waits no longer."""
_LARGEST_REQUEST_BYTES: Final = 8 << 20
_MOST_FILES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The arguments with which a planner is started."""

    library: str
    """The path of libcudnn.so.9; empty where no cuDNN can plan."""
    why_not: str
    """The reason why no cuDNN can plan."""
    version: int
    before: tuple[str, ...]
    """Libraries that are loaded first, because cuDNN looks for them by name."""
    symbols: tuple[str, ...]
    """Libraries that are loaded first, because cuDNN looks for their functions in the whole process."""
    without_compiler: str
    """The reason to give where cuDNN finds no engine because its compiler is missing; empty where the compiler is
    there."""
    capability: int
    """Compute capability as a number: 86 for 8.6."""
    device_json: str
    cache: str
    """Folder of cached answers; empty: nothing is cached on disk."""

    @property
    def tag(self) -> str:
        """Identifier of what answers depend on besides the card: cuDNN's version, and whether it can compile."""
        return f"{self.version}{'' if self.without_compiler else '-nvrtc'}"

    def to_json(self) -> str:
        """Return the setup as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Setup":
        """Read a setup from JSON text."""
        data = json.loads(text)
        return cls(**{**data, "before": tuple(data["before"]), "symbols": tuple(data["symbols"])})


class Planner:
    """Answers questions; the library is loaded at the first that is not answered on disk."""

    def __init__(self, setup: Setup) -> None:
        """Load nothing yet."""
        self._setup = setup
        keeps = bool(setup.cache and setup.library)
        self._cache = Cache(Path(setup.cache), tag=setup.tag, device_json=setup.device_json) if keeps else None
        self._cudnn: Cudnn | None = None
        self._broken = setup.why_not
        self._asked: OrderedDict[str, list[Descriptor]] = OrderedDict()

    def answer(self, request: str) -> str:
        """Answer a request; never raises."""
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
        except Exception as error:  # a question may be anything, and the next one is to be answered
            return f"unknown {' '.join(str(error).split())}; {_words(question)}\n"
        if self._cache and not answer.startswith("unknown") and not answer.endswith(" table\n"):
            self._cache.put(request, answer)
        return answer

    def _answer(self, wanted: list[str], question: str) -> str:
        if wanted[:1] == ["estimate"] and wanted[1:] in ([], ["all"]):
            return self._estimate(question, of_all_engines=len(wanted) > 1)
        cudnn = self._library()
        if cudnn is None:
            return f"unknown {self._broken}\n"  # of every graph: said once
        match wanted:
            case ["heuristics"]:
                found = cudnn.candidates(parse(question))
                if not found:
                    raise ValueError(self._setup.without_compiler or "cuDNN has no engine for it: a card raises")
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

    def _estimate(self, question: str, *, of_all_engines: bool) -> str:
        """Return an estimate from measurements of similar graphs; it is not cached, so that a newer table counts."""
        found = estimate(
            parse(question),
            version=self._setup.version,
            capability=self._setup.capability,
            of_all_engines=of_all_engines,
        )
        if found is None:
            return f"unknown nothing like it was measured; {_words(question)}\n"
        # Of all engines some take more than any card has; PyTorch goes on to the next where memory is short.
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
                    said = f"its header says that it is {self._setup.version}, itself that it is {cudnn.version}"
                    raise CudnnError(0, said)
                self._cudnn = cudnn
            except (OSError, CudnnError, AttributeError) as error:
                self._broken = f"cuDNN cannot be asked: {' '.join(str(error).split())}"
        return self._cudnn

    def _keep(self, question: str, configs: list[Descriptor]) -> None:
        self._asked[question] = configs
        while len(self._asked) > _KEPT_QUESTIONS:
            self._asked.popitem(last=False)


def _words(question: str) -> str:
    try:
        return describe(parse(question))
    except Exception:  # words are for a reason that there is already
        return "a graph that cannot be read"


# ---- the process


def serve(planner: Planner, line: socket.socket, client: int) -> None:
    """Answer requests until the client has ended.

    Args:
        planner: the planner that answers.
        line: the socket for requests and replies.
        client: the process that asks. Its forks hold the other end too, so that its closing alone does not tell.
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
    """Return whether a process has ended; one that was not reaped counts as ended."""
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
    """Run the planner of a process over the socket at standard input; one byte reports that it is ready."""
    os.setsid()  # Ctrl-C is not for us: we end when our client does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.chdir("/")
    os.closerange(3, _MOST_FILES)  # whatever the user has open for children: who reads to its end would wait for us
    with socket.socket(fileno=os.dup(0)) as line, suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        line.sendall(b"\n")
        serve(Planner(Setup.of_json(setup_json)), line, client)
    os._exit(0)
