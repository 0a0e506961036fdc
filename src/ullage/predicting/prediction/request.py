"""A prediction request: the script, the GPU, and all options."""

import json
import math
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, Unpack

from ullage.base.errors import UsageError
from ullage.base.option import check_choices, defaults_of
from ullage.base.output import check_output
from ullage.base.units import size_of, text_of_bytes
from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.gpus import Gpu, find_gpu
from ullage.gpu.tracing.edited_source import packed
from ullage.gpu.values.choice import ValuesChoice
from ullage.options import EpochOptions, RunChanges, RunOptions
from ullage.predicting.made_up.choice import MadeUpChoice
from ullage.predicting.prediction.command.notebook import cells_of
from ullage.predicting.prediction.command.words import NOTEBOOK, PYTHON_FILES, Launch, command_of, is_program, launch_of
from ullage.predicting.prediction.data.plain_data import PlainData
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE

if TYPE_CHECKING:
    from ullage.predicting.prediction.ranks.exchange import Exchange

STOP_SIGNAL: Final = int(signal.SIGRTMIN) + 11
"""The signal that stops the script and requests its result.

It is a real-time signal because scripts use SIGALRM and SIGUSR1 themselves.
"""
LEAVE_SIGNAL: Final = STOP_SIGNAL + 1
"""The signal that ends the script's process without a result."""
CLOSED_EXIT_CODE: Final = 119
"""The exit code of a script's process that could not send its result, because the script has closed the pipe."""
MOST_DRAWS: Final = 100
ALONE: Final = "alone"
REAL: Final = "real"
ALL: Final = "all"
"""The ways to run a launcher's processes: "alone" (one rank without the others), "real" (all ranks together), or "all"
(each rank separately).
"""
_STEPS: Final = 3
_MOST_RANKS: Final = 1 << 20
_MOST_GPUS: Final = 16  # the number of GPUs of the emulated driver
_MORE_STEPS: Final = 6
# Linux allows 128 KiB for one argument or one environment variable.
_MOST_EDITED: Final = 1 << 16
# Through this variable, processes of a predicted command find the parent process.
_VARIABLE: Final = "ULLAGE_PREDICTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The options of a prediction that both the parent process and the script's process need."""

    arguments: tuple[str, ...] = ()
    options: RunOptions
    """The values of all prediction options. Sizes are in bytes."""
    changes: tuple[str, ...] = ()
    """The changes that ullage makes while it runs the script, each as `key=setting`. The script's files stay unchanged.

    `ullage.predicting.changes.all_changes` returns all possible changes.
    """
    picture: bool = False
    """Whether to collect the data for the charts on an HTML page."""
    each_rank: bool = False
    """Whether to run every rank of a launcher separately."""
    eager: bool = False
    """Whether torch.compile is switched off."""
    diagnose: bool = False
    """Whether to search for memory that the script could avoid at its memory peak."""
    made_up_folder: str | None = None
    """The folder for the files of generated model weights and data."""
    helps: bool = False
    """Whether ullage runs this rank only to send messages to other ranks."""
    asks_all: bool = False
    """Whether ullage runs the other ranks of a group (up to 8) to compute their values in a collective. If False, this
    rank's own values replace them.
    """
    begins_without_values: bool = False
    """Whether the run begins without computing tensor values.

    The run ends with a ValuesReadError if the script reads a value that may affect a tensor size or a branch.
    """

    def with_options(self, **options: Unpack[RunChanges]) -> Self:
        """Return a copy of the request with other values for some options."""
        return replace(self, options={**self.options, **options})

    @property
    def processes(self) -> str:
        """The ranks that ullage runs: one rank ("alone"), all together ("real") or each separately ("all")."""
        return ALL if self.each_rank else self.options["processes"]

    @property
    def steps(self) -> int:
        """The number of optimizer steps to run."""
        steps = self.options["steps"]
        return _STEPS if steps is None else steps

    @property
    def more_steps(self) -> int:
        """The maximum number of additional training steps until the memory peak is stable."""
        return _MORE_STEPS if self.options["steps"] is None else 0

    @property
    def values(self) -> ValuesChoice:
        """The settings that decide which numbers the script gets when it reads tensors of the emulated GPU."""
        return ValuesChoice(
            mode=self.options["values"], seed=self.options["values_seed"], routing=self.options["routing"]
        )

    @property
    def made_up(self) -> MadeUpChoice:
        """The settings for generated model weights and data."""
        config, lengths = self.options["config"], self.options["lengths"]
        return MadeUpChoice(
            random_weights=self.options["random_weights"],
            config=None if config is None else str(config),
            data=self.options["made_up_data"],
            lengths=None if lengths is None else str(lengths),
            folder=self.made_up_folder,
        )

    @property
    def gpu(self) -> Gpu:
        """The GPU to emulate."""
        return find_gpu(self.options["gpu"], arch=self.options["arch"])

    @property
    def snapshot(self) -> Path | None:
        """The file for a memory snapshot of the run, or None."""
        return None if self.options["snapshot"] is None else Path(self.options["snapshot"])

    @property
    def total_memory_bytes(self) -> int | None:
        """The memory of the emulated GPU in bytes, or None to use the usual memory of this GPU."""
        return size_of(self.options["total_memory"], "--total-memory")

    @property
    def cudnn_workspace_bytes(self) -> int | None:
        """The workspace size of every cuDNN operation in bytes, or None to use cuDNN's own sizes."""
        return size_of(self.options["cudnn_workspace"], "--cudnn-workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest(RunRequest, PlainData):
    """A prediction request with absolute paths, for the script's process."""

    script: str
    """The absolute path of the script."""
    name: str
    """The script's path as the user gave it, which becomes `sys.argv[0]`."""
    context_bytes: int
    edited: str = ""
    """Source texts that Python executes instead of the original files."""
    exchange: str | None = None
    """The address of the socket for messages between ranks, or None."""
    variant: str = ""
    """The name of this run among the runs that exchange messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment(PlainData):
    """The data that the processes of a command read from an environment variable."""

    address: str
    """The name of the parent process's Unix socket in the kernel's abstract namespace."""
    request: ChildRequest
    processes: str
    """The ranks that ullage runs: one rank ("alone"), all together ("real") or each separately ("all")."""
    nodes: int
    """The number of machines in the user's command, such as torchrun's `--nnodes`."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Store this data in the environment, so that ullage measures Python processes that inherit it."""
        environment[_VARIABLE] = json.dumps(self.to_json())

    @classmethod
    def inherited(cls) -> "Attachment":
        """Return the data that the parent process stored in the environment."""
        return cls.from_json(json.loads(os.environ[_VARIABLE]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RunRequest):
    """A request for a prediction: what to run, on which GPU, and for how long."""

    script: Path
    """The path of a Python file or a notebook, or the first part of a command, such as torchrun."""
    edited: Mapping[str, str] = field(default_factory=dict)
    """Source texts that Python executes instead of the original files, by absolute path. The files stay unchanged."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the script, which override those of this process."""
    exchange: "Exchange | None" = field(default=None, repr=False, compare=False)
    """The exchange of messages between separate ranks. If it is None, `predict` creates one when needed."""

    @classmethod
    def of(
        cls, script: str | Path, arguments: Sequence[str] = (), *, picture: bool = False, **options: Unpack[RunOptions]
    ) -> "Request":
        """Create a prediction request from a script or a command and the user's options.

        Raises:
            UsageError: a size cannot be parsed, or an option has a value that it does not accept.
        """
        every: RunOptions = {**defaults_of(RunOptions), **options}  # type: ignore[typeddict-item]
        check_choices(every, RunOptions)
        every["total_memory"] = size_of(every["total_memory"], "--total-memory")
        every["context"] = size_of(every["context"], "--context")
        every["cudnn_workspace"] = size_of(every["cudnn_workspace"], "--cudnn-workspace")
        every["host_memory"] = size_of(every["host_memory"], "--host-memory")
        every["config"] = _absolute(every["config"])
        every["lengths"] = _absolute(every["lengths"])
        return cls(script=Path(script), arguments=tuple(arguments), options=every, picture=picture)

    @property
    def variant(self) -> str:
        """The name of a run. Ranks exchange messages only within runs of the same name."""
        return f"{self.values.seed} {self.values.routing} {self.eager}"

    @property
    def limit_seconds(self) -> float:
        """The time limit of the script in seconds."""
        return self.options["seconds"] + (60 * self.options["minutes"] if self.options["batches"] else 0)

    @property
    def is_command(self) -> bool:
        """Whether to start a program such as torchrun instead of running a script directly."""
        return not self.script.is_file() or is_program(self.script)

    @property
    def has_lone_ranks(self) -> bool:
        """Whether ullage may run a rank of a distributed job without the other ranks."""
        return (self.options["world_size"] or 1) > 1 or (self.is_command and self.processes != REAL)

    @property
    def name(self) -> str:
        """The script's file name or the first part of the command, for use in sentences."""
        if not self.is_command:
            return self.script.name
        words = [str(self.script), *self.arguments]
        return f"python -m {words[1]}" if words[0] == "-m" and words[1:] else Path(words[0]).name

    @property
    def launch(self) -> Launch:
        """The user's command, changed so that it runs on a single machine."""
        return launch_of([str(self.script), *self.arguments])

    @property
    def host_memory_bytes(self) -> int | None:
        """The host memory of one node in bytes, or None if the user gave none."""
        return size_of(self.options["host_memory"], "--host-memory")

    @property
    def context_bytes(self) -> int | None:
        """The size of the CUDA context in bytes, or None if the user gave none."""
        return size_of(self.options["context"], "--context")

    @property
    def total_bytes(self) -> int:
        """The total memory of the emulated GPU in bytes, as the script sees it."""
        return self.gpu.total_memory_bytes if self.total_memory_bytes is None else self.total_memory_bytes

    @property
    def emulated_context_bytes(self) -> int:
        """The size of the CUDA context during the emulated run, in bytes.

        The default is the smallest size for this GPU. A script that runs out of memory with it also runs out on a real
        GPU.
        """
        return profile_of(self.gpu).context_low_bytes if self.context_bytes is None else self.context_bytes

    def check(self) -> None:
        """Raise UsageError if an option is wrong or the script cannot be run."""
        find_gpu(self.options["gpu"], arch=self.options["arch"])
        world_size, rank = self.options["world_size"], self.options["rank"]
        if self.is_command:
            self._check_command()
        elif not os.access(self.script, os.R_OK):
            raise UsageError(
                f"the script {self.script} cannot be read: permission denied; expected a readable Python file"
            )
        elif self.script.suffix == NOTEBOOK:
            cells_of(self.script)
        if world_size is not None and not 1 <= world_size <= _MOST_RANKS:
            raise UsageError(f"world_size={world_size} is out of range; expected 1 to {_MOST_RANKS:,}")
        if not 1 <= self.options["count"] <= _MOST_GPUS:
            raise UsageError(f"count={self.options['count']} is out of range; expected 1 to {_MOST_GPUS}")
        of_launcher = self.is_command and world_size is None  # the launcher decides how many ranks there are
        if not 0 <= rank < (world_size or 1) and not (of_launcher and rank >= 0):
            ranks = f"0 to {world_size - 1}" if world_size else "no rank= without world_size="
            raise UsageError(f"rank={rank} is not a rank of the run; expected {ranks}")
        self.values.check()
        self.made_up.check()
        self._check_changes()
        self._check_edited()
        draws, seconds = self.options["draws"], self.options["seconds"]
        if not 1 <= draws <= MOST_DRAWS:
            raise UsageError(f"draws={draws} is out of range; expected 1 to {MOST_DRAWS}")
        if self.steps < 1:
            raise UsageError(f"steps={self.steps} is out of range; expected 1 or more")
        if not seconds > 0 or math.isinf(seconds):
            raise UsageError(f"seconds={seconds:g} is out of range; expected a number above 0")
        self._check_batches()
        if self.snapshot is not None:
            check_output("--snapshot", self.snapshot, inputs=(self.script,))
        total = self.total_bytes
        context = profile_of(self.gpu).context_bytes if self.context_bytes is None else self.context_bytes
        if context >= total:
            raise UsageError(
                f"a CUDA context of {text_of_bytes(context)} leaves no memory on a GPU with {text_of_bytes(total)}; "
                "give a larger GPU or a smaller context="
            )

    # Imports the module with the names only if there are changes.
    def _check_changes(self) -> None:
        if self.changes:
            from ullage.predicting.changes.all_changes import change_named

            for change in self.changes:
                change_named(change)

    def _check_edited(self) -> None:
        if self.script.suffix == NOTEBOOK and self.edited:
            raise UsageError(
                f"{self.script} is a notebook; expected a Python file, because an edited text cannot replace a notebook"
            )
        for path, text in self.edited.items():
            try:
                compile(text, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                raise UsageError(f"the edited text of {path} is not valid Python: {error}") from None
        if len(packed(self.edited)) > _MOST_EDITED:
            raise UsageError(
                f"the edited files are too long to be passed to the script's process; expected at most {_MOST_EDITED} "
                "characters in packed form"
            )

    def _check_command(self) -> None:
        first = str(self.script)
        if self.script.exists() and not self.script.is_file() and not (self.script / "__main__.py").exists():
            what = "is a folder" if self.script.is_dir() else "is a pipe or a device"
            raise UsageError(f"the script {first} {what}; expected a Python file")
        if first.startswith("-") and first != "-m":
            raise UsageError(f"expected a script in place of {first}; put the script before its own options")
        if ("/" in first or first.endswith((*PYTHON_FILES, NOTEBOOK))) and not self.script.exists():
            raise UsageError(f"the script {first} does not exist; expected a Python file")
        command_of([first, *self.arguments])

    def _check_batches(self) -> None:
        minutes = self.options["minutes"]
        if self.options["batches"] is None:
            if minutes != defaults_of(EpochOptions)["minutes"]:
                raise UsageError("minutes= limits the time for reading an epoch; give batches='heaviest' too")
            return
        if not minutes > 0 or math.isinf(minutes):
            raise UsageError(
                f"minutes={minutes:g} is out of range for the time limit of an epoch; expected a number above 0"
            )
        if self.snapshot is not None:
            raise UsageError(
                "snapshot= cannot be combined with batches='heaviest', which does not run most steps of an epoch; give "
                "only one of them"
            )

    def for_child(self) -> ChildRequest:
        """Return this request in the form that the script's process needs."""
        shared = {each.name: getattr(self, each.name) for each in fields(RunRequest)}
        snapshot = None if self.snapshot is None else str(self.snapshot.absolute())
        count = max(self.options["count"], min(self.options["world_size"] or 1, CARDS_OF_A_NODE))
        return ChildRequest(
            **{
                **shared,
                "options": {**self.options, "snapshot": snapshot, "count": count},
                "asks_all": self.asks_all or self.processes == ALL,
            },
            script=str(self.script.absolute()),
            name=str(self.script),
            context_bytes=self.emulated_context_bytes,
            edited=packed(self.edited),
            exchange=None if self.exchange is None else self.exchange.address,
            variant=self.variant,
        )


def helper_of(request: Request, rank: int) -> Request:
    """Return a request to run another rank. That rank sends messages, and ends when no rank waits for them."""
    helper = replace(
        request, helps=True, asks_all=request.asks_all or request.processes == ALL, each_rank=False, picture=False
    )
    return helper.with_options(
        rank=rank, processes=ALONE, steps=sys.maxsize, snapshot=None, output=False, until=None, batches=None
    )


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
