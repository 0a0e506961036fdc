"""Answers to questions about cuDNN: from the cache, from the library, or from measurements.

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
from collections import OrderedDict
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
        if wanted == ["estimate"]:
            return self._estimate(question, of_all_engines=False)
        if wanted == ["estimate", "all"]:
            return self._estimate(question, of_all_engines=True)
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
                size = cudnn.workspace_bytes(cudnn.config(parse(question)))
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
