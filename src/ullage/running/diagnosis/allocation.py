"""Checks the settings of PyTorch's allocator (`PYTORCH_CUDA_ALLOC_CONF`).

It finds settings that PyTorch rejects and settings that have no effect.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.recorded.settings import (
    SEMANTICS,
    UNLIMITED,
    VARIABLES,
    Settings,
    SettingsError,
    line_to_paste,
    parse_settings,
    semantics_of,
    settings_in_force,
)
from ullage.running.diagnosis.facts import DiagnosisFinding, MachineFacts, Torch, Weight

_MISSPELT: Final = re.compile(r"(?i)(?:PY)?TORCH\w{0,40}ALLOC\w{0,40}CONF\w{0,40}")
# A variable name that is this similar (`difflib`) to a real name counts as misspelt. At this similarity, one or two
# letters are wrong.
_LEAST_SIMILARITY: Final = 0.93
_CHANGED_BY_PROGRAM: Final = (
    "A program that calls torch._C._accelerator_setAllocatorSettings also changes the allocator settings."
)


def findings_of_allocation(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    """Yield the problems in the settings of PyTorch's allocator."""
    yield from _misspelt(facts)
    given = {name: facts.environment[name] for name in VARIABLES if name in facts.environment}
    text, torch = text_in_force(facts), facts.torch
    refusal = _refusal(text, torch)
    if refusal is not None:
        name = next((name for name, value in given.items() if value == text), "PYTORCH_ALLOC_CONF")
        yield DiagnosisFinding(
            name="settings-refused",
            title="PyTorch rejects the allocator settings",
            seen=f"{name}={text}: {refusal}",
            why="The first use of CUDA fails with this error message, or the process ends while torch is imported.",
            cure=f"Correct the setting, or: unset {name}",
        )
        return
    yield from _ignored(given, text, torch)
    yield from _without_effect(_settings_of(text, torch), facts)


def text_in_force(facts: MachineFacts) -> str:
    """Return the settings string that PyTorch's allocator uses, such as "expandable_segments:True"."""
    if facts.torch is not None and facts.torch.settings is not None:
        return facts.torch.settings
    return settings_in_force(facts.environment, _semantics(facts.torch))[0]


def _misspelt(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    for name, text in facts.environment.items():
        if name not in VARIABLES and (
            _MISSPELT.fullmatch(name) or get_close_matches(name.upper(), VARIABLES, 1, _LEAST_SIMILARITY)
        ):
            yield DiagnosisFinding(
                name="settings-misspelt",
                title=f"PyTorch does not read {name}",
                seen=f"{name}={text}",
                why="PyTorch reads its allocator settings only from PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.",
                cure=f"unset {name}; {line_to_paste(text)}",
            )


def _semantics(torch: Torch | None) -> str:
    try:
        return semantics_of(torch.version) if torch is not None else SEMANTICS[-1]
    except SettingsError:
        return SEMANTICS[-1]


def _refusal(text: str, torch: Torch | None) -> str | None:
    said = torch.settings_error if torch is not None else None
    if said is not None and " " in said:
        return said
    if said is None and torch is not None and torch.settings is not None:
        return None
    try:
        parse_settings(text, semantics=_semantics(torch))
    except SettingsError as error:
        return str(error)
    return said  # "stoull" for a number that is too large


def _settings_of(text: str, torch: Torch | None) -> Settings:
    # PyTorch may accept options that ullage's parser does not know
    try:
        return parse_settings(text, semantics=_semantics(torch))
    except SettingsError:
        return Settings()


def _ignored(given: dict[str, str], text: str, torch: Torch | None) -> Iterator[DiagnosisFinding]:
    ignored = {name: value for name, value in given.items() if _plain(value) != _plain(text)}
    if not ignored:
        return
    winner = next((name for name in given if name not in ignored), None)
    in_force = f"{text!r} is in force" if text else "no setting is in force"
    listed = ", ".join(f"{name}={value}" for name, value in ignored.items())
    if winner is not None:
        why = f"PyTorch reads only {winner}; it does not merge the settings of two variables."
        cure = f"Put all options into one variable, and: unset {' '.join(ignored)}"
    elif torch is not None and torch.is_here:
        why = (
            "The allocator reads the variable once, and a program changed the variable or the setting after that. "
            f"{_CHANGED_BY_PROGRAM}"
        )
        cure = "Set the environment variable before the process starts, or before the first `import torch`."
    else:
        version = f"torch {torch.version}" if torch is not None else "PyTorch"
        why = f"{version} does not read {' or '.join(ignored)}."
        cure = "; ".join(line_to_paste(value) for value in list(ignored.values())[:1])
    yield DiagnosisFinding(
        name="settings-ignored",
        title=f"{' and '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} not in force",
        seen=f"{listed}; {in_force}",
        why=why,
        cure=cure,
    )


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text).strip(",")


def _without_effect(settings: Settings, facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    if settings.backend == "cudaMallocAsync":
        yield _asynchronous(settings)
        return
    fraction = settings.per_process_memory_fraction
    if fraction < 1:
        total = f" of {text_of_bytes(facts.cards[0].total_bytes)}" if facts.cards else ""
        yield DiagnosisFinding(
            name="fraction",
            title=f"The allocator may reserve at most {fraction:.0%} of the GPU",
            seen=f"per_process_memory_fraction:{fraction:g}{total}",
            why="PyTorch's requests beyond this memory limit fail while the GPU still has free memory.",
            cure="Remove this memory limit, unless another process needs the rest of the GPU memory.",
            weight=Weight.NOTE,
        )
    if settings.garbage_collection_threshold and fraction == 1:
        yield _no_effect(
            f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}",
            "Without a memory limit below the total of the GPU, PyTorch's allocator never collects garbage.",
            "Add per_process_memory_fraction:0.95 (or torch.cuda.set_per_process_memory_fraction), or remove "
            "garbage_collection_threshold.",
        )
    if settings.expandable_segments:
        yield from _expandable(settings, facts)


def _no_effect(option: str, why: str, cure: str) -> DiagnosisFinding:
    return DiagnosisFinding(
        name="option-without-effect",
        title=f"{option.partition(':')[0]} has no effect",
        seen=option,
        why=why,
        cure=cure,
        weight=Weight.NOTE,
    )


def _asynchronous(settings: Settings) -> DiagnosisFinding:
    others = replace(settings, backend="native") != Settings(semantics=settings.semantics)
    return DiagnosisFinding(
        name="backend-async",
        title="CUDA's own allocator (cudaMallocAsync) replaces PyTorch's",
        seen="backend:cudaMallocAsync" + (", together with options of PyTorch's allocator" if others else ""),
        why="cudaMallocAsync has no memory snapshots and no memory history, and cannot share CUDA tensors with "
        "other processes"
        + ("; the other options apply only to PyTorch's allocator and have no effect." if others else "."),
        cure="Remove backend, unless you measured a benefit; expandable_segments:True reduces fragmentation.",
        weight=Weight.PROBLEM if others else Weight.NOTE,
    )


def _expandable(settings: Settings, facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    if facts.host.system == "Windows":
        yield _no_effect(
            "expandable_segments:True",
            "PyTorch does not support expandable segments on Windows; it warns once and ignores the option.",
            "On Windows, use max_split_size_mb, or garbage_collection_threshold with a memory fraction.",
        )
        return
    if settings.max_split_bytes != UNLIMITED:
        yield _no_effect(
            f"max_split_size_mb:{settings.max_split_bytes >> 20}",
            "PyTorch splits the blocks of expandable segments regardless of their size.",
            "Remove max_split_size_mb, or remove expandable_segments.",
        )
    if settings.garbage_collection_threshold and settings.per_process_memory_fraction < 1:
        yield _no_effect(
            f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}",
            "The allocator's garbage collection never frees expandable segments.",
            "Remove garbage_collection_threshold, or remove expandable_segments.",
        )
    hook = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    if facts.environment.get(hook, "0").lower() not in ("", "0", "false", "n", "no"):
        yield DiagnosisFinding(
            name="nccl-registration",
            title="Expandable segments switch off NCCL's registration of tensors",
            seen=f"{hook}={facts.environment[hook]} and expandable_segments:True",
            why="PyTorch treats the two options as incompatible and does not register the tensors with NCCL.",
            cure=f"unset {hook}, or remove expandable_segments.",
        )
