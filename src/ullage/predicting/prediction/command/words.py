"""The command that a person types: a script, a module, or a launcher on the path, and how many cards it asks for."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError
from ullage.base.foreign_files import open_regular

PYTHON_FILES: Final = (".py", ".pyw")
NOTEBOOK: Final = ".ipynb"
_PER_NODE: Final = frozenset(("--nproc-per-node", "--nproc_per_node", "--num-gpus", "--num_gpus"))
"""Options of torchrun (torch 2.15) and deepspeed (0.18) with the number of processes on a machine."""
_IN_ALL: Final = frozenset(("--num-processes", "--num_processes"))
"""Those of accelerate (1.15) with the number of processes on all machines."""
_NODES: Final = frozenset(("--nnodes", "--num-machines", "--num_machines", "--num-nodes", "--num_nodes"))
_OF_SEVERAL_NODES: Final = frozenset(
    (
        *("--node-rank", "--node_rank", "--machine-rank", "--machine_rank"),
        *("--rdzv-backend", "--rdzv_backend", "--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id", "--rdzv_id"),
        *("--rdzv-conf", "--rdzv_conf", "--master-addr", "--master_addr", "--master-port", "--master_port"),
        *("--main-process-ip", "--main_process_ip", "--main-process-port", "--main_process_port"),
        *("--hostfile", "-H", "--include", "-i"),
    )
)
"""Options that tell machines how they meet, each with a value: nothing is to be met where one rank runs alone."""
_LAUNCHERS: Final = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES: Final = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command as it is run on this machine alone."""

    words: tuple[str, ...]
    nodes: int = 1
    """The number of machines that the command as it was typed is one of."""
    cards: int = 1
    """The number of cards that each of them has to have."""


_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=")
"""A variable for the command that follows, as a shell has it."""


def shown(words: Sequence[str]) -> str:
    """Return a command for one line of a report: as it would be typed, of a word of several lines the first."""
    firsts = (word.strip().partition("\n") for word in words)
    return shlex.join(f"{first} ..." if more else first for first, more, _ in firsts)


def clearing(words: Sequence[str]) -> str:
    """Return the words with which a command leaves out the environment, in which ullage is; "" if none does."""
    for word, option in pairwise(words):
        name = Path(word).name
        is_python = name.startswith("python") and option in ("-I", "-E")
        if is_python or (name == "env" and option in ("-i", "-", "--ignore-environment")):
            return f"{name} {option}"
    return ""


def is_program(file: Path) -> bool:
    """Tell whether a file is run by something else than Python, as its first line says: a shell's script, a binary."""
    if file.suffix in (*PYTHON_FILES, NOTEBOOK) or not os.access(file, os.X_OK):
        return False
    try:
        with open_regular(file) as stream:
            first = stream.readline(200)
    except OSError:
        return False
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def is_launcher(words: Sequence[str]) -> bool:
    """Tell whether a command starts a process for each card: torchrun, accelerate launch, deepspeed."""
    return bool(words) and (
        Path(words[0]).name in _LAUNCHERS or any(word in _LAUNCHER_MODULES for word in _options_of_launcher(words))
    )


def launch_of(words: Sequence[str]) -> Launch:
    """Return the command of one machine, of those that a launcher's command is for.

    Args:
        words: what was typed: "torchrun --nnodes 2 --nproc-per-node 8 train.py".
    """
    if not is_launcher(words):
        return Launch(tuple(words))
    own = _options_of_launcher(words)
    rest = words[len(own) :]
    nodes = max([_number(value.partition(":")[2] or value) for value in _values(own, _NODES)] or [1])
    here = max([_number(value) for value in _values(own, _PER_NODE)] or [1])
    in_all = [_number(value) for value in _values(own, _IN_ALL)]
    cards = -(-in_all[-1] // nodes) if in_all else here
    if nodes == 1:
        return Launch(tuple(words), cards=cards)
    kept = _with_value(_with_value(own, _OF_SEVERAL_NODES, None), _NODES, "1")
    return Launch((*_with_value(kept, _IN_ALL, str(cards)), *rest), nodes=nodes, cards=cards)


def _options_of_launcher(words: Sequence[str]) -> list[str]:
    """Return the words up to the script: what follows it is the script's."""
    for place, word in enumerate(words[1:], 1):
        if word.endswith(PYTHON_FILES) or (word in ("-m", "--module") and words[0] in _LAUNCHERS):
            return list(words[:place])
    return list(words)


def _values(words: Sequence[str], names: frozenset[str]) -> list[str]:
    found = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and (equals or place + 1 < len(words)):
            found.append(value if equals else words[place + 1])
    return found


def _with_value(words: Sequence[str], names: frozenset[str], value: str | None) -> list[str]:
    """Return words with another value of some options; None: without these options."""
    found: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_named = not is_value and name in names
        if not is_value and not is_named:
            found.append(word)
        elif value is not None:
            found.append(value if is_value else f"{name}={value}" if equals else word)
        is_value = is_named and not equals
    return found


def _number(text: str) -> int:
    """Return a number of processes; 1 for what is none, such as torchrun's "gpu"."""
    return max(int(text), 1) if text.isdecimal() and len(text) < 6 else 1


def command_of(words: Sequence[str], *, asked: str = "ullage predict") -> list[str]:
    """Return the command to execute for the words of a command line.

    Args:
        words: "train.py ARGS", "-m module ARGS", or a launcher with its arguments ("torchrun", "accelerate launch").
        asked: the command of ours that was given the words.

    Raises:
        UsageError: there is no such script or launcher.
    """
    if not words:
        raise UsageError(f"{asked} was given nothing to run; expected a script: {asked} train.py --batch-size 8")
    first, *rest = words
    if first == "-m":
        if not rest:
            raise UsageError(f"-m needs the name of a module: {asked} -m package.train")
        return [sys.executable, "-m", *rest]
    if not Path(first).exists() and (assignment := _ASSIGNMENT.match(first)):
        name = assignment[1]
        raise UsageError(f"{name}=... is no command; expected variables before {asked}, or behind env: env {name}=...")
    if first.startswith("-"):
        raise UsageError(
            f"{first} is neither an option of {asked} nor a script; options of the script come after its name"
        )
    is_python = first.endswith(PYTHON_FILES)
    if is_python and not Path(first).exists():
        raise UsageError(f"there is no script {first}; expected one in this folder, or its whole path")
    if Path(first).is_file() and is_program(Path(first)):
        return [str(Path(first).absolute()), *rest]
    found = None if is_python else shutil.which(first)
    if found is None and (Path(first).is_file() or (Path(first) / "__main__.py").exists()):
        return [sys.executable, first, *rest]  # python takes any file for a script, archives and compiled ones too
    if found is None:
        raise UsageError(f"{first} is neither a script nor a command on the path; expected one of them, or -m MODULE")
    return [found, *rest]
