"""Collects the facts about a machine. PyTorch is examined in a child process, unless this process has imported
torch.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any, Final

from ullage.base.child_process import python_command
from ullage.base.errors import UsageError
from ullage.gpu.emulator.cudnn.start import state_of
from ullage.gpu.emulator.emulate import CARD_VARIABLE
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.gpus import find_gpu
from ullage.recorded.settings import SettingsError, parse_settings, semantics_of, settings_in_force
from ullage.running.diagnosis.facts import CardFacts, CardProcess, Driver, MachineFacts, Torch
from ullage.running.diagnosis.host import read_host
from ullage.running.diagnosis.nvml import read_cards
from ullage.running.diagnosis.probe import read_torch

_TIMEOUT_SECONDS: Final = 120
_ENDED_BY_SIGNAL: Final = "it was ended by signal"
_VARIABLE_NAMES: Final = re.compile(r"(?i)(PYTORCH|TORCH|CUDA|CUBLAS|CUDNN|NCCL)[A-Z0-9_]*")
_SETTING_ERROR: Final = re.compile(r"(?m)^.*(?:allocator config|CachingAllocator option|ALLOC_CONF).*$")


def gather_facts(gpu: str | None = None) -> MachineFacts:
    """Return the facts about the machine without creating a CUDA context in this process.

    Args:
        gpu: the name of a GPU to emulate in a child process; None to examine this machine's GPUs.

    Raises:
        TorchMissingError: `gpu` is given, and no PyTorch that is built for CUDA is installed.
        UnknownGpuError: no GPU has this name.
        UsageError: `gpu` is given, and this process has already imported torch.
    """
    environment = {name: text for name, text in sorted(os.environ.items()) if _VARIABLE_NAMES.fullmatch(name)}
    is_here = sys.modules.get("torch") is not None
    workspaces = None
    if gpu is not None:
        find_gpu(gpu)
        workspaces = state_of(find_torch())
        if is_here:
            raise UsageError(
                f"this process has already imported torch, so it cannot emulate gpu={gpu!r}; "
                "run `ullage doctor --gpu` in a new process"
            )
    if is_here:
        driver, cards = read_cards()
        torch: Torch | None = read_torch(is_here=True)
    else:
        driver, cards, torch = _facts_of_child(gpu)
    return MachineFacts(
        environment=environment,
        host=read_host(),
        driver=driver,
        cards=cards,
        torch=torch,
        is_emulated=gpu is not None or bool(os.environ.get(CARD_VARIABLE)),
        workspaces=workspaces,
    )


def _facts_of_child(gpu: str | None) -> tuple[Driver | None, tuple[CardFacts, ...], Torch | None]:
    # The file is not run with -m, because Python would then import modules from the current folder, whoever wrote them.
    command = [*python_command("ullage.running.diagnosis.probe", with_flags=False), *([gpu] if gpu is not None else [])]
    error = ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
        out, error = done.stdout, done.stderr
        if done.returncode < 0:
            error += f"\n{_ENDED_BY_SIGNAL} {-done.returncode}"
    except subprocess.TimeoutExpired as late:
        out = (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        error = f"it had not responded after {_TIMEOUT_SECONDS} seconds"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    driver, cards = _cards(json.loads(lines[0])) if lines else (None, ())
    if len(lines) > 1:
        found = json.loads(lines[1])
        return driver, cards, Torch(**found | {"architectures": tuple(found["architectures"])})
    return driver, cards, _torch_that_fails(error)


def _cards(found: dict[str, Any]) -> tuple[Driver | None, tuple[CardFacts, ...]]:
    driver = found["driver"]
    return (
        None if driver is None else Driver(version=driver["version"], cuda=_pair(driver["cuda"])),
        tuple(
            CardFacts(
                **card
                | {
                    "compute_capability": card["compute_capability"] and _pair(card["compute_capability"]),
                    "processes": tuple(CardProcess(**one) for one in card["processes"]),
                }
            )
            for card in found["cards"]
        ),
    )


def _pair(numbers: list[int]) -> tuple[int, int]:
    first, second = numbers
    return first, second


def _torch_that_fails(error: str) -> Torch | None:
    if importlib.util.find_spec("torch") is None:
        return None
    version = "unknown"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
    if (refused := _SETTING_ERROR.search(error)) is not None:
        return Torch(version=version, settings_error=refused[0].strip())
    if _ENDED_BY_SIGNAL in error and version != "unknown":  # the process ended before PyTorch could print the reason
        try:
            parse_settings(settings_in_force(os.environ, semantics_of(version))[0], semantics=semantics_of(version))
        except SettingsError as refusal:
            return Torch(version=version, settings_error=str(refusal))
    last = next((line for line in reversed(error.splitlines()) if line.strip()), "it ended without an error message")
    return Torch(version=version, error=last.strip())
