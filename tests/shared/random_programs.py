"""What random programs on torch's own allocator have in common: settings to choose from, and a process for each."""

import json
import os
from collections.abc import Callable

from ullage.recorded.settings import SettingsError, parse_settings

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:32,garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.5,roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:4,64:2,>:1],large_segment_size_mb:64",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,max_split_size_mb:40,roundup_power2_divisions:8",
    "large_segment_size_mb:33,max_split_size_mb:48,max_non_split_rounding_mb:100",
    "expandable_segments:True,garbage_collection_threshold:0.7",
)
NEWER_CONFS = (  # with options that not every version knows
    "throw_on_cudamalloc_oom:True",
    "expandable_segments:True,expandable_segments_reserve:0.25",
    "expandable_segments:True,throw_on_cudamalloc_oom:True,max_split_size_mb:50",
)


def known_confs(semantics: str) -> list[str]:
    """Return the settings of which the installed torch knows every option: one that it does not would abort."""
    found = []
    for conf in CONFS + NEWER_CONFS:
        try:
            parse_settings(conf, semantics=semantics)
        except SettingsError:
            continue
        found.append(conf)
    return found


def set_settings(text: str) -> None:
    """Tell torch's allocator."""
    import torch  # the card has to be there first

    known = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # from torch 2.9 or 2.10 on
    (known or torch._C._cuda_cudaCachingAllocator_set_allocator_settings)(text)


def in_a_fork(run: Callable[[int, int], tuple[int, str]], seed: int, operations: int) -> tuple[int, str]:
    """Run one program in a process of its own; return how many operations were compared, and what differs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = run(seed, operations)
        except BaseException as error:
            found = 0, f"{type(error).__name__}: {error}"
        os.write(write, json.dumps((found[0], found[1][:3000])).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    compared, text = json.loads(said or json.dumps((0, f"the process ended with status {status}")))
    return compared, text
