"""Checks environment variables for `ullage doctor`. They may cost memory or hide GPUs."""

import re
from collections.abc import Iterator
from typing import Final

from ullage.base.units import KIB, MIB, text_of_bytes
from ullage.running.diagnosis.facts import DiagnosisFinding, MachineFacts, Weight

_WORKSPACES: Final = re.compile(r"(?::\d+:\d+)+")
_USUAL_WORKSPACE_BYTES: Final = 32 * MIB  # PyTorch's default on sm_90; 8.1 MiB on sm_75 (torch 2.8, 2.11)
_NCCL_BUFFER_BYTES: Final = 4 * MIB  # the default in NCCL's documentation of NCCL_BUFFSIZE


def findings_of_variables(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    """Yield the problems with environment variables, except allocator settings."""
    yield from _visible_cards(facts)
    yield from _switches(facts.environment)
    yield from _workspaces(facts.environment)
    yield from _nccl(facts.environment)


# ---- CUDA_VISIBLE_DEVICES


def visible_indices(text: str, facts: MachineFacts) -> tuple[list[int], str | None]:
    """Return the GPU indices in CUDA_VISIBLE_DEVICES, and a reason if CUDA ignores a part of the list.

    CUDA ends the list at the first invalid name. It hides all GPUs if one is listed twice.
    """
    shown: list[int] = []
    for name in text.split(","):
        number = _index_of(name.strip(), facts)
        if number is None:
            return shown, f"{name!r} is not a GPU" if name else "a name is empty"
        if number in shown:
            return [], f"GPU {number} is named twice"
        shown.append(number)
    return shown, None


def _index_of(name: str, facts: MachineFacts) -> int | None:
    if name.startswith("GPU-"):
        found = [card.index for card in facts.cards if card.uuid.startswith(name)]
        return found[0] if len(found) == 1 else None
    digits = re.match(r"\+?\d+", name)
    if digits is None:
        return None
    number = int(digits[0])
    is_known = facts.is_emulated or not facts.cards  # the number of GPUs is unknown, or does not matter for UUIDs
    return number if is_known or number < len(facts.cards) else None


def _visible_cards(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    text = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if text is None or text.startswith("MIG-") or (text.startswith("GPU-") and (facts.is_emulated or not facts.cards)):
        return
    shown, reason = visible_indices(text, facts)
    count = f" of {len(facts.cards)}" if facts.cards and not facts.is_emulated else ""
    if not shown:
        is_meant = text in ("", "-1")
        yield DiagnosisFinding(
            name="no-card-visible",
            title="CUDA_VISIBLE_DEVICES hides all GPUs",
            seen=f"CUDA_VISIBLE_DEVICES={text!r}" + ("" if is_meant else f": {reason}"),
            why="torch.cuda.is_available() is False, and programs run on the CPU without a warning.",
            cure="unset CUDA_VISIBLE_DEVICES, or list GPU numbers: 0,1",
            weight=Weight.NOTE if is_meant and not facts.cards else Weight.PROBLEM,
        )
    elif reason is not None:
        yield DiagnosisFinding(
            name="cards-cut-off",
            title=f"CUDA_VISIBLE_DEVICES shows fewer GPUs than it names: {len(shown)}{count}",
            seen=f"CUDA_VISIBLE_DEVICES={text!r}: {reason}",
            why="CUDA ends the list of GPUs at the first name that is not a GPU, and hides all GPUs after that name.",
            cure=f"export CUDA_VISIBLE_DEVICES={','.join(map(str, shown))}, or correct the other names",
        )
    names = {card.name for card in facts.cards}
    if len(names) > 1 and text[:1].isdigit() and facts.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield DiagnosisFinding(
            name="card-order",
            title="The GPU numbers in CUDA_VISIBLE_DEVICES may differ from nvidia-smi's",
            seen=f"{len(facts.cards)} GPUs of {len(names)} models, and CUDA_DEVICE_ORDER is not PCI_BUS_ID",
            why="CUDA gives number 0 to the fastest GPU; nvidia-smi numbers GPUs by their position on the PCI bus.",
            cure="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            weight=Weight.NOTE,
        )


# ---- switches


def _switches(environment: dict[str, str]) -> Iterator[DiagnosisFinding]:
    caching = environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING")
    if caching == "1":
        yield DiagnosisFinding(
            name="no-caching",
            title="PyTorch's caching allocator is switched off",
            seen="PYTORCH_NO_CUDA_MEMORY_CACHING=1",
            why="Every tensor needs a slow cudaMalloc and cudaFree, and all memory statistics of PyTorch are 0.",
            cure="unset PYTORCH_NO_CUDA_MEMORY_CACHING (it is meant for compute-sanitizer)",
        )
    elif caching not in (None, "0"):
        yield DiagnosisFinding(
            name="no-caching-unread",
            title="PYTORCH_NO_CUDA_MEMORY_CACHING has a value that PyTorch ignores",
            seen=f"PYTORCH_NO_CUDA_MEMORY_CACHING={caching!r}",
            why="PyTorch accepts only 0 and 1.",
            cure="unset PYTORCH_NO_CUDA_MEMORY_CACHING, or set it to 1 or 0",
            weight=Weight.NOTE,
        )
    if environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield DiagnosisFinding(
            name="launch-blocking",
            title="The CPU waits for every kernel",
            seen=f"CUDA_LAUNCH_BLOCKING={environment['CUDA_LAUNCH_BLOCKING']}",
            why="CUDA_LAUNCH_BLOCKING is for debugging and slows training down; it does not use memory.",
            cure="unset CUDA_LAUNCH_BLOCKING",
            weight=Weight.NOTE,
        )
    if environment.get("CUDA_MODULE_LOADING", "").upper() == "EAGER":
        yield DiagnosisFinding(
            name="eager-loading",
            title="All kernels of all libraries are loaded onto the GPU",
            seen=f"CUDA_MODULE_LOADING={environment['CUDA_MODULE_LOADING']}",
            why="With this setting, the CUDA context of each process contains kernels that never run: hundreds of MiB "
            "with PyTorch's libraries.",
            cure="unset CUDA_MODULE_LOADING, or: export CUDA_MODULE_LOADING=LAZY",
        )


# ---- workspaces and buffers


def _workspaces(environment: dict[str, str]) -> Iterator[DiagnosisFinding]:
    text = environment.get("CUBLAS_WORKSPACE_CONFIG")
    if text is None:
        return
    if not _WORKSPACES.fullmatch(text):
        yield DiagnosisFinding(
            name="workspace-unread",
            title="CUBLAS_WORKSPACE_CONFIG cannot be parsed",
            seen=f"CUBLAS_WORKSPACE_CONFIG={text!r}",
            why="PyTorch warns and uses its default workspace, so cuBLAS is not deterministic even if you requested "
            "deterministic results.",
            cure="export CUBLAS_WORKSPACE_CONFIG=:4096:8 (pairs of a size in KiB and a number of buffers)",
        )
        return
    numbers = [int(number) for number in text[1:].split(":")]
    n_bytes = KIB * sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
    if n_bytes > _USUAL_WORKSPACE_BYTES:
        yield DiagnosisFinding(
            name="workspace-large",
            title=f"cuBLAS gets a workspace of {text_of_bytes(n_bytes)} for each stream of each thread's handle",
            seen=f"CUBLAS_WORKSPACE_CONFIG={text}",
            why=f"PyTorch's default workspace has 8.1 MiB to {text_of_bytes(_USUAL_WORKSPACE_BYTES)}, by GPU model.",
            cure="export CUBLAS_WORKSPACE_CONFIG=:4096:8 (32.0 MiB), which is deterministic too",
        )


def _nccl(environment: dict[str, str]) -> Iterator[DiagnosisFinding]:
    text = environment.get("NCCL_BUFFSIZE", "")
    if text.isdigit() and int(text) > _NCCL_BUFFER_BYTES:
        yield DiagnosisFinding(
            name="nccl-buffers",
            title=f"NCCL's buffers are {int(text) / _NCCL_BUFFER_BYTES:.3g} times as large as the default",
            seen=f"NCCL_BUFFSIZE={text}: {text_of_bytes(int(text))} for each buffer; the default is "
            f"{text_of_bytes(_NCCL_BUFFER_BYTES)}",
            why="NCCL allocates one buffer for each pair of GPUs and each channel, outside of PyTorch's allocator.",
            cure="unset NCCL_BUFFSIZE",
        )
    if "TORCH_NCCL_AVOID_RECORD_STREAMS" in environment:
        yield DiagnosisFinding(
            name="record-streams",
            title="TORCH_NCCL_AVOID_RECORD_STREAMS no longer has an effect",
            seen=f"TORCH_NCCL_AVOID_RECORD_STREAMS={environment['TORCH_NCCL_AVOID_RECORD_STREAMS']}",
            why="From version 2.8 on, PyTorch avoids record_stream by default and reports "
            "TORCH_NCCL_AVOID_RECORD_STREAMS as deprecated. PyTorch 2.15 ignores the variable.",
            cure="unset TORCH_NCCL_AVOID_RECORD_STREAMS",
            weight=Weight.NOTE,
        )
