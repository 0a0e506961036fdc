"""Parse the user's command, and find out how many GPUs it needs."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError
from ullage.base.foreign_files import open_regular

PYTHON_FILES: Final = (".py", ".pyw")
NOTEBOOK: Final = ".ipynb"
# torchrun (torch 2.15) and deepspeed (0.18)
_PER_NODE: Final = frozenset(("--nproc-per-node", "--nproc_per_node", "--num-gpus", "--num_gpus"))
# accelerate (1.15)
_IN_ALL: Final = frozenset(("--num-processes", "--num_processes"))
_NODES: Final = frozenset(("--nnodes", "--num-machines", "--num_machines", "--num-nodes", "--num_nodes"))
# These options, each with a value, connect machines. The command runs on one machine only.
_OF_SEVERAL_NODES: Final = frozenset(
    (
        *("--node-rank", "--node_rank", "--machine-rank", "--machine_rank"),
        *("--rdzv-backend", "--rdzv_backend", "--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id", "--rdzv_id"),
        *("--rdzv-conf", "--rdzv_conf", "--master-addr", "--master_addr", "--master-port", "--master_port"),
        *("--main-process-ip", "--main_process_ip", "--main-process-port", "--main_process_port"),
        *("--hostfile", "-H", "--include", "-i"),
    )
)
_LAUNCHERS: Final = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES: Final = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
)


@dataclass(frozen=True, slots=True)
class Launch:
    """The user's command, changed so that it runs on a single machine."""

    words: tuple[str, ...]
    nodes: int = 1
    """The number of machines in the user's command."""
    cards: int = 1
    """The number of GPUs per machine that the command needs."""


_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=")


def shown(words: Sequence[str]) -> str:
    """Return the first line of a command with shell quoting."""
    firsts = (word.strip().partition("\n") for word in words)
    return shlex.join(f"{first} ..." if more else first for first, more, _ in firsts)


def is_program(file: Path) -> bool:
    """Return whether a file is a program other than a Python script, such as a shell script."""
    if file.suffix in (*PYTHON_FILES, NOTEBOOK) or not os.access(file, os.X_OK):
        return False
    try:
        with open_regular(file) as stream:
            first = stream.readline(200)
    except OSError:
        return False
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a command starts torchrun, accelerate launch or deepspeed."""
    return bool(words) and (
        Path(words[0]).name in _LAUNCHERS or any(word in _LAUNCHER_MODULES for word in _options_of_launcher(words))
    )


def launch_of(words: Sequence[str]) -> Launch:
    """Change a launcher's command so that it runs on one machine.

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
