"""Parse the command line that the user wants to run: a script, a module, or a launcher, and the number of GPUs it
needs.
"""

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
"""The options of torchrun (torch 2.15) and deepspeed (0.18) with the number of processes per machine."""
_IN_ALL: Final = frozenset(("--num-processes", "--num_processes"))
"""The options of accelerate (1.15) with the number of processes on all machines together."""
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
"""The launcher options with which machines find each other. Each has a value. They are removed if one rank runs alone,
which does not connect to other machines.
"""
_LAUNCHERS: Final = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES: Final = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command in the form in which it is run on this one machine."""

    words: tuple[str, ...]
    nodes: int = 1
    """The number of machines for which the command was written."""
    cards: int = 1
    """The number of GPUs that each of these machines needs."""


_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=")
"""An assignment of an environment variable in front of a command, as shells accept it: NAME=value."""


def shown(words: Sequence[str]) -> str:
    """Return a command as one line for a report, with shell quoting; of an argument with several lines, only the
    first.
    """
    firsts = (word.strip().partition("\n") for word in words)
    return shlex.join(f"{first} ..." if more else first for first, more, _ in firsts)


def clearing(words: Sequence[str]) -> str:
    """Return the part of a command that clears the environment variables (such as "env -i"), which ullage needs; "" if
    there is none.
    """
    for word, option in pairwise(words):
        name = Path(word).name
        is_python = name.startswith("python") and option in ("-I", "-E")
        if is_python or (name == "env" and option in ("-i", "-", "--ignore-environment")):
            return f"{name} {option}"
    return ""


def is_program(file: Path) -> bool:
    """Return whether a file is executed by something else than Python, judged by its first line: a shell script, a
    binary.
    """
    if file.suffix in (*PYTHON_FILES, NOTEBOOK) or not os.access(file, os.X_OK):
        return False
    try:
        with open_regular(file) as stream:
            first = stream.readline(200)
    except OSError:
        return False
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a command starts one process per GPU: torchrun, accelerate launch, deepspeed."""
    return bool(words) and (
        Path(words[0]).name in _LAUNCHERS or any(word in _LAUNCHER_MODULES for word in _options_of_launcher(words))
    )


def launch_of(words: Sequence[str]) -> Launch:
    """Return the part of a launcher's command that one of its machines runs.

    Args:
        words: the command as it was typed: "torchrun --nnodes 2 --nproc-per-node 8 train.py".
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
    """Return the launcher and its own options: all arguments before the script, because later arguments belong to the
    script.
    """
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
    """Return a command with a new value for some options; with None as the value, without these options."""
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
    """Return a number of processes; 1 for a text that is not a number, such as torchrun's "gpu"."""
    return max(int(text), 1) if text.isdecimal() and len(text) < 6 else 1


def command_of(words: Sequence[str], *, asked: str = "ullage predict") -> list[str]:
    """Return the command to execute for the arguments of a command line.

    Args:
        words: "train.py ARGS", "-m module ARGS", or a launcher with its arguments ("torchrun", "accelerate launch").
        asked: the ullage command that received the arguments, for error messages.

    Raises:
        UsageError: the script or the launcher does not exist.
    """
    if not words:
        raise UsageError(f"{asked} needs a script to run: {asked} train.py --batch-size 8")
    first, *rest = words
    if first == "-m":
        if not rest:
            raise UsageError(f"-m needs the name of a module: {asked} -m package.train")
        return [sys.executable, "-m", *rest]
    if not Path(first).exists() and (assignment := _ASSIGNMENT.match(first)):
        name = assignment[1]
        raise UsageError(
            f"{name}=... is not a command; put variables before {asked}, or use {asked} env {name}=... python train.py"
        )
    if first.startswith("-"):
        raise UsageError(
            f"{first} is neither an option of {asked} nor a script; put the options of your script after its name"
        )
    is_python = first.endswith(PYTHON_FILES)
    if is_python and not Path(first).exists():
        raise UsageError(f"the script {first} does not exist; expected a file in this folder, or its whole path")
    if Path(first).is_file() and is_program(Path(first)):
        return [str(Path(first).absolute()), *rest]
    found = None if is_python else shutil.which(first)
    if found is None and (Path(first).is_file() or (Path(first) / "__main__.py").exists()):
        return [sys.executable, first, *rest]  # Python runs any file as a script, also archives and compiled files
    if found is None:
        raise UsageError(f"{first} is neither a script nor a command on the PATH; expected one of these, or -m MODULE")
    return [found, *rest]
