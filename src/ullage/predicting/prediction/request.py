"""What a prediction is asked for. It knows no process and no torch."""

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
from ullage.options import RunChanges, RunOptions
from ullage.predicting.made_up.choice import MadeUpChoice
from ullage.predicting.prediction.command.notebook import cells_of
from ullage.predicting.prediction.command.words import NOTEBOOK, PYTHON_FILES, Launch, command_of, is_program, launch_of
from ullage.predicting.prediction.data.plain_data import PlainData
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE

if TYPE_CHECKING:
    from ullage.predicting.prediction.ranks.exchange import Exchange

STOP_SIGNAL: Final = int(signal.SIGRTMIN) + 11
"""Asks the script's process to end the script. A real-time signal: scripts use SIGALRM and SIGUSR1 themselves."""
LEAVE_SIGNAL: Final = STOP_SIGNAL + 1
"""Asks it to end and to tell nothing: its answer is not wanted any more."""
MOST_DRAWS: Final = 100
ALONE: Final = "alone"
REAL: Final = "real"
ALL: Final = "all"
"""Ways to run what a launcher starts: one process, as a rank alone; all of them together; each of them, each alone."""
_STEPS: Final = 3
_MOST_RANKS: Final = 1 << 20
_MOST_GPUS: Final = 16  # that the emulated driver has
_MORE_STEPS: Final = 6
_MOST_EDITED: Final = 1 << 16
"""The most characters of packed texts: Linux takes 128 KiB for an argument or a variable of the environment."""
_VARIABLE: Final = "ULLAGE_PREDICTION"
"""The variable that ties the processes of a predicted command to the parent that listens to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run is asked for, as the caller and the script's process both know it."""

    arguments: tuple[str, ...] = ()
    options: RunOptions
    """Every option, with its default where it was not given; sizes are in bytes."""
    changes: tuple[str, ...] = ()
    """The changes to make to the run from outside, as `key=setting` of `ullage.predicting.changes.all_changes`."""
    picture: bool = False
    """Whether to report what a page draws too: memory by role over time, the peak by module, the segments."""
    each_rank: bool = False
    """Whether each rank of a launcher runs, each of them alone."""
    eager: bool = False
    """Whether torch.compile is switched off."""
    diagnose: bool = False
    """Whether to look for what of the peak is avoidable: `Prediction.avoidable`."""
    made_up_folder: str | None = None
    """The folder for what is made up and has to be a file."""
    helps: bool = False
    """Whether a rank runs only so that others have what it sends."""
    asks_all: bool = False
    """Whether the ranks of a group of up to 8 are asked for what they gather, sum or exchange; if not, or in a larger
    group, a rank that runs alone takes its own for what the others have."""
    begins_without_values: bool = False
    """Whether values are not followed until something is read that may decide, which ends the run with a
    ValuesReadError."""

    def with_options(self, **options: Unpack[RunChanges]) -> Self:
        """Return the same request with other options."""
        return replace(self, options={**self.options, **options})

    @property
    def processes(self) -> str:
        """The processes of a launcher that run: `ALONE`, `REAL` or `ALL`."""
        return ALL if self.each_rank else self.options["processes"]

    @property
    def steps(self) -> int:
        """The number of optimizer steps to run."""
        steps = self.options["steps"]
        return _STEPS if steps is None else steps

    @property
    def more_steps(self) -> int:
        """The number of further steps to run while their peaks have not settled."""
        return _MORE_STEPS if self.options["steps"] is None else 0

    @property
    def values(self) -> ValuesChoice:
        """The way in which values that are read back from the card are answered."""
        return ValuesChoice(
            mode=self.options["values"], seed=self.options["values_seed"], routing=self.options["routing"]
        )

    @property
    def made_up(self) -> MadeUpChoice:
        """What is made up where it is missing."""
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
        """The card to emulate."""
        return find_gpu(self.options["gpu"], arch=self.options["arch"])

    @property
    def snapshot(self) -> Path | None:
        """The file for a snapshot of the run."""
        return None if self.options["snapshot"] is None else Path(self.options["snapshot"])

    @property
    def total_memory_bytes(self) -> int | None:
        """The card's memory, in place of the known one."""
        return size_of(self.options["total_memory"], "--total-memory")

    @property
    def cudnn_workspace_bytes(self) -> int | None:
        """The workspace of every cuDNN plan, in place of cuDNN's own."""
        return size_of(self.options["cudnn_workspace"], "--cudnn-workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest(RunRequest, PlainData):
    """What the script's process has to know, with nothing in it of the caller's folder."""

    script: str
    """Its absolute path."""
    name: str
    """The script as it was given: its own `sys.argv[0]`."""
    context_bytes: int
    edited: str = ""
    """The texts that run in place of files, as `ullage.gpu.tracing.edited_source.packed` writes them."""
    exchange: str | None = None
    """The address of the messages of ranks that run alone."""
    variant: str = ""
    """The name of the run there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment(PlainData):
    """What every process of a predicted command knows, by a variable of its environment."""

    address: str
    """The name of the parent's socket, in the kernel's abstract namespace."""
    request: ChildRequest
    processes: str
    """The processes of a launcher that run: `ALONE`, `REAL` or `ALL`."""
    nodes: int
    """The number of machines that the command as it was typed is one of."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Have every Python process with this environment be measured."""
        environment[_VARIABLE] = json.dumps(self.to_json())

    @classmethod
    def inherited(cls) -> "Attachment":
        """Return what the process that started this one has put into the environment."""
        return cls.from_json(json.loads(os.environ[_VARIABLE]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RunRequest):
    """What to run, on which card, and for how long."""

    script: Path
    """The path of a Python file or a notebook; or the first word of a command: "-m", torchrun, any program."""
    edited: Mapping[str, str] = field(default_factory=dict)
    """The texts that run in place of files of the user's, by absolute path; the files stay as they are."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the script finds in addition to, or in place of, those of this process."""
    exchange: "Exchange | None" = field(default=None, repr=False, compare=False)
    """The messages of ranks that run alone; None: one is made where there are such ranks."""

    @classmethod
    def of(
        cls, script: str | Path, arguments: Sequence[str] = (), *, picture: bool = False, **options: Unpack[RunOptions]
    ) -> "Request":
        """Return the request to run a script or a command with options as the user gave them.

        Raises:
            UsageError: an option is not a size or not one of its values.
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
        """What tells the runs apart whose ranks do not tell each other anything."""
        return f"{self.values.seed} {self.values.routing} {self.eager}"

    @property
    def limit_seconds(self) -> float:
        """The time after which the script is stopped in any case."""
        return self.options["seconds"] + (60 * self.options["minutes"] if self.options["batches"] else 0)

    @property
    def is_command(self) -> bool:
        """Whether a program is started that starts Python itself, instead of a script in a process of ours."""
        return not self.script.is_file() or is_program(self.script)

    @property
    def has_lone_ranks(self) -> bool:
        """Whether what runs are ranks, each alone in its process; of a command that is not known before."""
        return (self.options["world_size"] or 1) > 1 or (self.is_command and self.processes != REAL)

    @property
    def name(self) -> str:
        """What the request runs, for sentences: the script's name, or the command's first words."""
        if not self.is_command:
            return self.script.name
        words = [str(self.script), *self.arguments]
        return f"python -m {words[1]}" if words[0] == "-m" and words[1:] else Path(words[0]).name

    @property
    def launch(self) -> Launch:
        """The command as it is run on this machine."""
        return launch_of([str(self.script), *self.arguments])

    @property
    def host_memory_bytes(self) -> int | None:
        """The memory of one node's host, which then decides too; None: what this machine has, which does not."""
        return size_of(self.options["host_memory"], "--host-memory")

    @property
    def context_bytes(self) -> int | None:
        """What the CUDA context takes, if it was given."""
        return size_of(self.options["context"], "--context")

    @property
    def total_bytes(self) -> int:
        """The memory of the card that the script sees."""
        return self.gpu.total_memory_bytes if self.total_memory_bytes is None else self.total_memory_bytes

    @property
    def emulated_context_bytes(self) -> int:
        """The context next to which the script runs: the given one, or the least that the card's profile allows.

        So a script that runs out of memory does so for certain; the interval decides about one that does not.
        """
        return profile_of(self.gpu).context_low_bytes if self.context_bytes is None else self.context_bytes

    def check(self) -> None:
        """Raise UsageError where the request cannot be carried out."""
        find_gpu(self.options["gpu"], arch=self.options["arch"])
        world_size, rank = self.options["world_size"], self.options["rank"]
        if self.is_command:
            self._check_command()
        elif not os.access(self.script, os.R_OK):
            raise UsageError(f"the script {self.script} may not be read by you; expected a Python file")
        elif self.script.suffix == NOTEBOOK:
            cells_of(self.script)
        if world_size is not None and not 1 <= world_size <= _MOST_RANKS:
            raise UsageError(f"--world-size {world_size} is out of range; expected 1 to {_MOST_RANKS:,}")
        if not 1 <= self.options["count"] <= _MOST_GPUS:
            raise UsageError(f"--count {self.options['count']} is out of range; expected 1 to {_MOST_GPUS}")
        of_launcher = self.is_command and world_size is None  # how many there are is the launcher's business
        if not 0 <= rank < (world_size or 1) and not (of_launcher and rank >= 0):
            ranks = f"0 to {world_size - 1}" if world_size else "no --rank without --world-size"
            raise UsageError(f"--rank {rank} is not a rank of the run; expected {ranks}")
        self.values.check()
        self.made_up.check()
        self._check_changes()
        self._check_edited()
        draws, seconds = self.options["draws"], self.options["seconds"]
        if not 1 <= draws <= MOST_DRAWS:
            raise UsageError(f"--draws {draws} is out of range; expected 1 to {MOST_DRAWS}")
        if self.steps < 1:
            raise UsageError(f"--steps {self.steps} leaves nothing to measure; expected 1 or more")
        if not seconds > 0 or math.isinf(seconds):
            raise UsageError(f"--seconds {seconds:g} is not a time to stop after; expected a number above 0")
        self._check_batches()
        if self.snapshot is not None:
            check_output("--snapshot", self.snapshot, inputs=(self.script,))
        total = self.total_bytes
        context = profile_of(self.gpu).context_bytes if self.context_bytes is None else self.context_bytes
        if context >= total:
            raise UsageError(
                f"a context of {text_of_bytes(context)} leaves no room on a card of {text_of_bytes(total)}; "
                "give a larger card or a smaller --context"
            )

    def _check_changes(self) -> None:
        """Raise UsageError where a change has a name that none has; most runs have none, and need no module for it."""
        if self.changes:
            from ullage.predicting.changes.all_changes import change_named

            for change in self.changes:
                change_named(change)

    def _check_edited(self) -> None:
        """Raise UsageError where an edited text cannot run."""
        if self.script.suffix == NOTEBOOK and self.edited:
            raise UsageError(f"{self.script} is a notebook, and only Python files can run as an edited text")
        for path, text in self.edited.items():
            try:
                compile(text, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                raise UsageError(f"the edited text of {path} is no Python: {error}") from None
        if len(packed(self.edited)) > _MOST_EDITED:
            raise UsageError("the edited files are too long to be handed to the script's process")

    def _check_command(self) -> None:
        """Raise UsageError where there is no such command."""
        first = str(self.script)
        if self.script.exists() and not self.script.is_file() and not (self.script / "__main__.py").exists():
            what = "is a folder" if self.script.is_dir() else "is a pipe or a device"
            raise UsageError(f"the script {first} {what}; expected a Python file")
        if first.startswith("-") and first != "-m":
            raise UsageError(f"{first} stands where the script should; put the script before its own options")
        if ("/" in first or first.endswith((*PYTHON_FILES, NOTEBOOK))) and not self.script.exists():
            raise UsageError(f"the script {first} does not exist; expected a Python file")
        command_of([first, *self.arguments])

    def _check_batches(self) -> None:
        """Raise UsageError where --batches and what belongs to it make no sense."""
        if self.options["batches"] is None:
            return
        minutes = self.options["minutes"]
        if not minutes > 0 or math.isinf(minutes):
            raise UsageError(f"--minutes {minutes:g} is not a time limit for an epoch; expected a number above 0")
        if self.snapshot is not None:
            raise UsageError(
                "--snapshot records a run, and with --batches heaviest most steps of an epoch are not run; leave one "
                "out"
            )

    def for_child(self) -> ChildRequest:
        """Return what the child process has to know."""
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
    """Return the request of another rank, which runs until nobody waits for what it sends any more."""
    helper = replace(
        request, helps=True, asks_all=request.asks_all or request.processes == ALL, each_rank=False, picture=False
    )
    return helper.with_options(
        rank=rank, processes=ALONE, steps=sys.maxsize, snapshot=None, output=False, until=None, batches=None
    )


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
