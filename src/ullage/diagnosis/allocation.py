"""Judge the settings of PyTorch's allocator: which text counts, what it refuses, what has no effect.

Which variable counts was tried on torch 2.8, 2.11 and 2.15: 2.8 reads PYTORCH_CUDA_ALLOC_CONF alone; 2.11 and 2.15
read the first that is set of `VARIABLES`, even an empty one, also in builds for CUDA. What has no effect was tried on
the allocator itself. It does not know what a program sets later.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ullage._units import text_of_bytes
from ullage.diagnosis.facts import Facts, Torch
from ullage.diagnosis.finding import Finding, Weight
from ullage.settings import (
    UNLIMITED,
    VARIABLES,
    Settings,
    SettingsError,
    parse_settings,
    semantics_of,
    settings_in_force,
)

_ALIKE: Final = re.compile(r"(?i)(?:PY)?TORCH\w*ALLOC\w*CONF\w*")
_CLOSE: Final = 0.93
"""Two texts of which 0.93 is alike: a letter or two are wrong (`difflib`)."""
_SPELLING: Final = "A program's own changes count too: torch._C._accelerator_setAllocatorSettings."


def findings_of_allocation(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong with the allocator's settings."""
    yield from _misspelt(facts)
    given = {name: facts.environment[name] for name in VARIABLES if name in facts.environment}
    text, torch = text_in_force(facts), facts.torch
    refusal = _refusal(text, torch)
    if refusal is not None:
        name = next((name for name, value in given.items() if value == text), "PYTORCH_ALLOC_CONF")
        yield Finding(
            name="settings-refused",
            title="PyTorch refuses the allocator's settings",
            seen=f"{name}={text}: {refusal}",
            why="The first use of CUDA fails with this error, or the process ends while torch is loaded.",
            cure=f"Correct it, or: unset {name}",
        )
        return
    yield from _ignored(given, text, torch)
    yield from _without_effect(_settings_of(text, torch), facts)


def text_in_force(facts: Facts) -> str:
    """Return the settings that count: as the allocator has read them, or else as it would."""
    if facts.torch is not None and facts.torch.settings is not None:
        return facts.torch.settings
    return settings_in_force(facts.environment)[0]


def _misspelt(facts: Facts) -> Iterator[Finding]:
    for name, text in facts.environment.items():
        if name not in VARIABLES and (_ALIKE.fullmatch(name) or get_close_matches(name.upper(), VARIABLES, 1, _CLOSE)):
            yield Finding(
                name="settings-misspelt",
                title=f"{name} is read by nobody",
                seen=f"{name}={text}",
                why="PyTorch reads PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF; these settings do nothing.",
                cure=f"unset {name}; export {_name_for(facts.torch)}={text}",
            )


def _name_for(torch: Torch | None) -> str:
    """The variable to set: the old name is read by every version."""
    return "PYTORCH_CUDA_ALLOC_CONF" if torch is None or _release(torch) < (2, 11) else "PYTORCH_ALLOC_CONF"


def _release(torch: Torch) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", torch.version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _semantics(torch: Torch | None) -> str:
    try:
        return semantics_of(torch.version) if torch is not None else "2.15"
    except SettingsError:
        return "2.15"


def _refusal(text: str, torch: Torch | None) -> str | None:
    """What PyTorch says of a text that it refuses; as far as it was not asked, what the grammar says."""
    said = torch.settings_error if torch is not None else None
    if said is not None and " " in said:
        return said
    if said is None and torch is not None and torch.settings is not None:
        return None
    try:
        parse_settings(text, semantics=_semantics(torch))
    except SettingsError as error:
        return str(error)
    return said  # "stoull", of a number that is too large


def _settings_of(text: str, torch: Torch | None) -> Settings:
    """The settings as figures; the defaults for a text that PyTorch has taken and this grammar does not know."""
    try:
        return parse_settings(text, semantics=_semantics(torch))
    except SettingsError:
        return Settings()


def _ignored(given: dict[str, str], text: str, torch: Torch | None) -> Iterator[Finding]:
    """Variables whose text is not the one in force."""
    ignored = {name: value for name, value in given.items() if _plain(value) != _plain(text)}
    if not ignored:
        return
    winner = next((name for name in given if name not in ignored), None)
    in_force = f"in force is {text!r}" if text else "in force is no setting at all"
    listed = ", ".join(f"{name}={value}" for name, value in ignored.items())
    if winner is not None:
        why = f"{winner} counts as a whole; PyTorch does not merge the two."
        cure = f"Put all options into one of them, and: unset {' '.join(ignored)}"
    elif torch is not None and torch.is_here:
        why = f"The allocator reads its variable once, and something has changed one or the other since. {_SPELLING}"
        cure = "Set it before the process starts, or before the first `import torch`."
    else:
        version = f"torch {torch.version}" if torch is not None else "PyTorch"
        why = f"{version} does not read {' or '.join(ignored)}."
        cure = "; ".join(f"export {_name_for(torch)}={value}" for value in list(ignored.values())[:1])
    yield Finding(
        name="settings-ignored",
        title=f"{' and '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} not in force",
        seen=f"{listed}; {in_force}",
        why=why,
        cure=cure,
    )


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text).strip(",")


def _without_effect(settings: Settings, facts: Facts) -> Iterator[Finding]:
    if settings.backend == "cudaMallocAsync":
        yield _asynchronous(settings)
        return
    fraction = settings.per_process_memory_fraction
    if fraction < 1:
        total = f" of {text_of_bytes(facts.cards[0].total_bytes)}" if facts.cards else ""
        yield Finding(
            name="fraction",
            title=f"The allocator may take {fraction:.0%} of the card and no more",
            seen=f"per_process_memory_fraction:{fraction:g}{total}",
            why="Requests beyond it fail while the card has room.",
            cure="Leave it out, unless another process is to have the rest.",
            weight=Weight.NOTE,
        )
    if settings.garbage_collection_threshold and fraction == 1:
        yield _no_effect(
            f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}",
            "The allocator collects only under a limit below the whole card.",
            "Add per_process_memory_fraction:0.95 (or torch.cuda.set_per_process_memory_fraction), or leave it out.",
        )
    if settings.expandable_segments:
        yield from _expandable(settings, facts)


def _no_effect(option: str, why: str, cure: str) -> Finding:
    return Finding(
        name="option-without-effect",
        title=f"{option.partition(':')[0]} has no effect",
        seen=option,
        why=why,
        cure=cure,
        weight=Weight.NOTE,
    )


def _asynchronous(settings: Settings) -> Finding:
    others = replace(settings, backend="native") != Settings(semantics=settings.semantics)
    return Finding(
        name="backend-async",
        title="CUDA's own allocator is in use in place of PyTorch's",
        seen="backend:cudaMallocAsync" + (", with options of PyTorch's allocator beside it" if others else ""),
        why="It has no memory snapshots, no memory history, and cannot share CUDA tensors with other processes"
        + ("; the other options are for PyTorch's and do nothing." if others else "."),
        cure="Leave backend out, unless this was measured to be better; expandable_segments:True cures fragmentation.",
        weight=Weight.PROBLEM if others else Weight.NOTE,
    )


def _expandable(settings: Settings, facts: Facts) -> Iterator[Finding]:
    if facts.host.system == "Windows":
        yield _no_effect(
            "expandable_segments:True",
            "PyTorch has no expandable segments on Windows; it warns once and goes on without.",
            "Use max_split_size_mb or garbage_collection_threshold with a fraction there.",
        )
        return
    if settings.max_split_bytes != UNLIMITED:
        yield _no_effect(
            f"max_split_size_mb:{settings.max_split_bytes >> 20}",
            "Blocks of expandable segments are split whatever their size.",
            "Leave it out, or leave expandable_segments out.",
        )
    if settings.garbage_collection_threshold and settings.per_process_memory_fraction < 1:
        yield _no_effect(
            f"garbage_collection_threshold:{settings.garbage_collection_threshold:g}",
            "The collection never frees expandable segments.",
            "Leave it out, or leave expandable_segments out.",
        )
    hook = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    if facts.environment.get(hook, "0").lower() not in ("", "0", "false", "n", "no"):
        yield Finding(
            name="nccl-registration",
            title="NCCL's registration of tensors is switched off by expandable segments",
            seen=f"{hook}={facts.environment[hook]} and expandable_segments:True",
            why="PyTorch takes the two for incompatible and leaves the registration out.",
            cure=f"unset {hook}, or leave expandable_segments out.",
        )
