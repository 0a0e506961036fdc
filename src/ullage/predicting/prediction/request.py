"""What a prediction is asked for. It knows no process and no torch."""

import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ullage.base.errors import UsageError, quoted
from ullage.base.output import check_output
from ullage.base.units import text_of_bytes
from ullage.gpu.emulator.emulate import check_placement
from ullage.gpu.emulator.library import PLACEMENTS
from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.gpus import Gpu, find_gpu
from ullage.gpu.tracing.edited_source import packed
from ullage.gpu.values.choice import ValuesChoice
from ullage.predicting.made_up.choice import MadeUpChoice
from ullage.predicting.prediction.command.notebook import cells_of
from ullage.predicting.prediction.command.words import NOTEBOOK, PYTHON_FILES, Launch, command_of, is_program, launch_of
from ullage.predicting.prediction.data.plain_data import from_plain, to_plain
from ullage.predicting.prediction.job_request import check_job_request
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE

if TYPE_CHECKING:
    from ullage.predicting.prediction.ranks.exchange import Exchange

STOP_SIGNAL: Final = int(signal.SIGRTMIN) + 11
"""Asks the script's process to end the script. A real-time signal: scripts use SIGALRM and SIGUSR1 themselves."""
LEAVE_SIGNAL: Final = STOP_SIGNAL + 1
"""Asks it to end and to tell nothing: its answer is not wanted any more."""
MOST_DRAWS: Final = 100
ALONE, REAL, ALL = PROCESSES = ("alone", "real", "all")
"""Ways to run what a launcher starts: one process, as a rank alone; all of them together; each of them, each alone."""
UNTIL: Final = ("eval", "save", "end")
"""The words for how far to go on: through the first evaluation or save after a step, or to the script's end."""
HEAVIEST: Final = "heaviest"
_MOST_EDITED: Final = 1 << 16
"""The most characters of packed texts: Linux takes 128 KiB for an argument or a variable of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """What the script's process has to know, with nothing in it of the caller's folder; fields are as in `Request`."""

    script: str
    """Its absolute path."""
    name: str
    """The script as it was given: its own `sys.argv[0]`."""
    arguments: tuple[str, ...]
    gpu: str
    arch: str | None
    count: int
    world_size: int | None
    rank: int
    steps: int
    more_steps: int
    alloc_conf: str | None
    eager: bool
    changes: tuple[str, ...]
    total_memory_bytes: int | None
    context_bytes: int
    cudnn_workspace_bytes: int | None
    placement: str
    values: ValuesChoice
    picture: bool
    snapshot: str | None
    """Its absolute path."""
    until: str | None = None
    batches: str | None = None
    minutes: float = 0.0
    made_up: MadeUpChoice = field(default_factory=MadeUpChoice)
    diagnose: bool = False
    edited: str = ""
    """The texts that run in place of files, as `ullage.gpu.tracing.edited_source.packed` writes them."""
    exchange: str | None = None
    """The address of the messages of ranks that run alone."""
    variant: str = ""
    """The name of the run there."""
    helps: bool = False
    asks_all: bool = False
    begins_without_values: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ChildRequest":
        """Read what `to_json` returned."""
        return from_plain(cls, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run, on which card, and for how long."""

    script: Path
    """The path of a Python file or a notebook; or the first word of a command: "-m", torchrun, any program."""
    arguments: tuple[str, ...] = ()
    gpu: str
    arch: str | None = None
    count: int = 1
    world_size: int | None = None
    """Run as one rank of so many, in one process; None: as a script that is started alone."""
    rank: int = 0
    steps: int = 3
    more_steps: int = 0
    """The number of further steps to run while their peaks have not settled."""
    seconds: float = 300.0
    """The time limit of the script, the import of torch not counted."""
    alloc_conf: str | None = None
    changes: tuple[str, ...] = ()
    """The changes to make to the run from outside, as `key=setting` of `ullage.predicting.changes.all_changes`."""
    edited: Mapping[str, str] = field(default_factory=dict)
    """The texts that run in place of files of the user's, by absolute path; the files stay as they are."""
    total_memory_bytes: int | None = None
    context_bytes: int | None = None
    cudnn_workspace_bytes: int | None = None
    placement: str = PLACEMENTS[0]
    """The driver that chooses addresses: one of `ullage.gpu.emulator.library.PLACEMENTS`."""
    values: ValuesChoice = field(default_factory=lambda: ValuesChoice(mode="auto"))
    """The way in which values that are read back from the card are answered."""
    draws: int = 3
    """The number of seeds to try where values that nobody knows decide."""
    eager: bool = False
    """Whether torch.compile is switched off."""
    snapshot: Path | None = None
    picture: bool = False
    """Tell what a page draws too: memory by role over time, the peak by module, the segments."""
    echo: bool = False
    """Pass the script's output on to standard error."""
    until: str | None = None
    """One of `UNTIL`: how far to go on after the settled steps; None: no further."""
    batches: str | None = None
    """"heaviest": go through an epoch of the training loader, run few of its steps, and foresee the rest."""
    minutes: float = 5.0
    """The time for that, beside `seconds`."""

    processes: str = ALONE
    """The processes that run, of those that a launcher starts: one of `PROCESSES`."""
    host_memory_bytes: int | None = None
    """The memory of one node's host, which then decides too; None: what this machine has, which does not."""
    job_request: str | None = None
    """"slurm" or "k8s": whose lines to write that ask for what was found; None: none."""
    made_up: MadeUpChoice = field(default_factory=MadeUpChoice)
    """Whether weights and data that are not here are made up."""
    diagnose: bool = False
    """Whether to look for what of the peak is avoidable: `Prediction.avoidable`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the script finds beside, or in place of, those of this process."""

    exchange: "Exchange | None" = field(default=None, repr=False, compare=False)
    """The messages of ranks that run alone; None: one is made where there are such ranks."""
    helps: bool = False
    """Whether a rank runs only so that others have what it sends."""
    asks_all: bool = False
    """Whether the ranks of a group of up to 8 are asked for what they gather, sum or exchange; if not, or in a larger
    group, a rank that runs alone takes its own for what the others have."""
    begins_without_values: bool = False
    """Whether values are not followed until something is read that may decide, which ends the run with a
    ValuesReadError."""

    @property
    def variant(self) -> str:
        """What tells the runs apart whose ranks do not tell each other anything."""
        return f"{self.values.seed} {self.values.routing} {self.eager}"

    @property
    def limit_seconds(self) -> float:
        """The time after which the script is stopped in any case."""
        return self.seconds + (60 * self.minutes if self.batches else 0)

    @property
    def is_command(self) -> bool:
        """Whether a program is started that starts Python itself, instead of a script in a process of ours."""
        return not self.script.is_file() or is_program(self.script)

    @property
    def has_lone_ranks(self) -> bool:
        """Whether what runs are ranks, each alone in its process; of a command that is not known before."""
        return bool(self.world_size and self.world_size > 1) or (self.is_command and self.processes != REAL)

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

    def total_bytes(self, gpu: Gpu) -> int:
        """The memory of the card that the script sees."""
        return gpu.total_memory_bytes if self.total_memory_bytes is None else self.total_memory_bytes

    def emulated_context_bytes(self, gpu: Gpu) -> int:
        """The context beside which the script runs: the given one, or the least that the card's profile allows.

        So a script that runs out of memory does so for certain; the interval decides about one that does not.
        """
        return profile_of(gpu).context_low_bytes if self.context_bytes is None else self.context_bytes

    def check(self, gpu: Gpu) -> None:
        """Raise UsageError where the request cannot be carried out."""
        if self.is_command:
            self._check_command()
        elif not os.access(self.script, os.R_OK):
            raise UsageError(f"the script {self.script} may not be read by you; expected a Python file")
        elif self.script.suffix == NOTEBOOK:
            cells_of(self.script)
        if self.world_size is not None and self.world_size < 1:
            raise UsageError(f"--world-size {self.world_size} has no rank; expected 1 or more")
        of_launcher = self.is_command and self.world_size is None  # how many there are is the launcher's business
        if not 0 <= self.rank < (self.world_size or 1) and not (of_launcher and self.rank >= 0):
            ranks = f"0 to {self.world_size - 1}" if self.world_size else "no --rank without --world-size"
            raise UsageError(f"--rank {self.rank} is no rank of the run; expected {ranks}")
        check_placement("--placement ", self.placement)
        self.values.check()
        check_job_request(self.job_request)
        self.made_up.check()
        self._check_changes()
        self._check_edited()
        if not 1 <= self.draws <= MOST_DRAWS:
            raise UsageError(f"--draws {self.draws} is out of range; expected 1 to {MOST_DRAWS}")
        if self.steps < 1:
            raise UsageError(f"--steps {self.steps} leaves nothing to measure; expected 1 or more")
        if not self.seconds > 0 or math.isinf(self.seconds):
            raise UsageError(f"--seconds {self.seconds:g} is no time to stop after; expected a number above 0")
        if self.until is not None and self.until not in UNTIL:
            raise UsageError(f"--until {quoted(self.until)} is not known; expected one of {', '.join(UNTIL)}")
        check_batches(self.batches, self.minutes, with_snapshot=self.snapshot is not None)
        if self.snapshot is not None:
            check_output("--snapshot", self.snapshot, inputs=(self.script,))
        total = self.total_bytes(gpu)
        context = profile_of(gpu).context_bytes if self.context_bytes is None else self.context_bytes
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
        if self.processes not in PROCESSES:
            raise UsageError(
                f"--processes {quoted(self.processes)} is not known; expected {' or '.join(PROCESSES[:2])}"
            )

    def for_child(self) -> ChildRequest:
        """Return what the child process has to know."""
        return ChildRequest(
            script=str(self.script.absolute()),
            name=str(self.script),
            arguments=self.arguments,
            gpu=self.gpu,
            arch=self.arch,
            count=max(self.count, min(self.world_size or 1, CARDS_OF_A_NODE)),
            world_size=self.world_size,
            rank=self.rank,
            steps=self.steps,
            more_steps=self.more_steps,
            alloc_conf=self.alloc_conf,
            eager=self.eager,
            changes=self.changes,
            total_memory_bytes=self.total_memory_bytes,
            context_bytes=self.emulated_context_bytes(find_gpu(self.gpu, arch=self.arch)),
            cudnn_workspace_bytes=self.cudnn_workspace_bytes,
            placement=self.placement,
            values=self.values,
            picture=self.picture,
            snapshot=str(self.snapshot.absolute()) if self.snapshot else None,
            until=self.until,
            batches=self.batches,
            minutes=self.minutes,
            made_up=self.made_up,
            diagnose=self.diagnose,
            edited=packed(self.edited),
            exchange=None if self.exchange is None else self.exchange.address,
            variant=self.variant,
            helps=self.helps,
            asks_all=self.asks_all or self.processes == ALL,
            begins_without_values=self.begins_without_values,
        )


def helper_of(request: Request, rank: int) -> Request:
    """Return the request of another rank, which runs until nobody waits for what it sends any more."""
    return replace(
        request,
        rank=rank,
        helps=True,
        asks_all=request.asks_all or request.processes == ALL,
        processes=ALONE,
        steps=sys.maxsize,
        more_steps=0,
        snapshot=None,
        picture=False,
        echo=False,
        until=None,
        batches=None,
    )


def check_batches(batches: str | None, minutes: float, *, with_snapshot: bool) -> None:
    """Raise UsageError where --batches and what belongs to it make no sense."""
    if batches is None:
        return
    if batches != HEAVIEST:
        raise UsageError(f"--batches {quoted(batches)} is not a way to choose batches; expected {HEAVIEST}")
    if not minutes > 0 or math.isinf(minutes):
        raise UsageError(f"--minutes {minutes:g} is no time to go through an epoch; expected a number above 0")
    if with_snapshot:
        raise UsageError(
            f"--snapshot records a run, and with --batches {HEAVIEST} most steps of an epoch are not run; leave one out"
        )
