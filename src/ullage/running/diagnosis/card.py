"""Checks which other processes use the GPUs, and whether the driver and PyTorch support the GPUs."""

from collections.abc import Iterable, Iterator
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.gpu.emulator.torch_build import has_code_for
from ullage.running.diagnosis.facts import CardFacts, CardProcess, DiagnosisFinding, MachineFacts, Torch, Weight

_HIDDEN_BYTES_IGNORED: Final = GIB  # smaller amounts that belong to no process may be the driver's own
_NOTABLE_SHARE: Final = 0.1  # of a GPU's memory, held by other processes


def findings_of_cards(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    """Yield the problems with the GPUs. For example, the driver may be too old for PyTorch."""
    if facts.torch is not None:
        yield from _torch(facts.torch, facts)
    for card in facts.cards:
        yield from _others(card)
        yield from _mode(card)
    yield from _ghosts(facts)
    yield from _strays(facts)


# ---- torch, driver, GPU


def _torch(torch: Torch, facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    if torch.error is not None:
        yield DiagnosisFinding(
            name="torch-fails",
            title="PyTorch is installed but cannot be imported",
            seen=f"torch {torch.version}: {torch.error}",
            why="No PyTorch program can run on the GPU.",
            cure="Install PyTorch again with its dependencies: pip install --force-reinstall torch",
        )
    elif torch.cuda is None and torch.hip is None and torch.settings_error is None and facts.cards:
        yield DiagnosisFinding(
            name="torch-for-cpu",
            title="This PyTorch is built without CUDA",
            seen=f"torch {torch.version} on a machine with {_name(facts.cards[0])}",
            why="torch.cuda.is_available() is False, and programs run on the CPU without a warning.",
            cure="pip install --upgrade --force-reinstall torch",
        )
    if torch.cuda is not None and facts.driver is not None:
        yield from _driver(torch, torch.cuda, facts)
    elif torch.cuda is not None and torch.error is None and not facts.is_emulated:
        yield DiagnosisFinding(
            name="no-driver",
            title="No NVIDIA driver was found",
            seen=f"torch {torch.version} is built for CUDA {torch.cuda}; libnvidia-ml.so.1 is missing or does not "
            "respond",
            why="Programs that use the GPU fail with: Found no NVIDIA driver on your system.",
            cure="If this machine has a GPU: install its driver, or start the container with --gpus all. If it has "
            "none: "
            "ullage run --gpu NAME runs a program on an emulated GPU",
            weight=Weight.NOTE,
        )
    if torch.architectures and torch.hip is None:
        yield from _architecture(torch, facts)


def _driver(torch: Torch, cuda: str, facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    assert facts.driver is not None
    major, minor, *_ = (int(part) for part in f"{cuda}.0".split(".")[:2])
    driver_cuda = facts.driver.cuda
    if (major, minor) <= driver_cuda or driver_cuda == (0, 0):
        return
    seen = (
        f"driver {facts.driver.version} supports CUDA up to {driver_cuda[0]}.{driver_cuda[1]}; "
        f"torch {torch.version} is built for {cuda}"
    )
    if major > driver_cuda[0]:
        yield DiagnosisFinding(
            name="driver-too-old",
            title="The driver is too old for this PyTorch",
            seen=seen,
            why="PyTorch cannot use the GPU with this driver. Data-centre GPUs are an exception: with NVIDIA's "
            "compatibility package (cuda-compat), an older driver is enough.",
            cure="Install a newer driver, or a PyTorch that is built for an older CUDA (pytorch.org lists the "
            "commands).",
        )
    else:
        yield DiagnosisFinding(
            name="driver-older",
            title="The driver is older than the CUDA version of this PyTorch",
            seen=seen,
            why="Programs run, because driver and PyTorch have the same major version of CUDA; kernels compiled at run "
            "time may fail.",
            cure="Install a newer driver if a kernel fails with a PTX error.",
            weight=Weight.NOTE,
        )


def _architecture(torch: Torch, facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    for card in facts.cards:
        if card.compute_capability is None or has_code_for(card.compute_capability, list(torch.architectures)):
            continue
        major, minor = card.compute_capability
        yield DiagnosisFinding(
            name="no-kernels",
            title=f"This PyTorch has no kernels for {_name(card)}",
            seen=f"the GPU is sm_{major}{minor}; torch {torch.version} has {' '.join(torch.architectures)}",
            why="The first operation fails: no kernel image is available for execution on the device.",
            cure="Install a PyTorch build for this architecture (pytorch.org lists the commands).",
        )


def _mode(card: CardFacts) -> Iterator[DiagnosisFinding]:
    if card.compute_mode == "prohibited":
        yield DiagnosisFinding(
            name="mode-prohibited",
            title=f"{_name(card)} does not accept compute processes",
            seen="its compute mode is prohibited",
            why="No process can use this GPU.",
            cure=f"An administrator can change the mode: nvidia-smi -i {card.index} -c DEFAULT",
        )
    elif card.compute_mode == "exclusive":
        yield DiagnosisFinding(
            name="mode-exclusive",
            title=f"{_name(card)} accepts only one process at a time",
            seen="its compute mode is exclusive",
            why="A second process on this GPU fails with 'all CUDA-capable devices are busy or unavailable'.",
            cure=f"If this is not intended, an administrator can change the mode: nvidia-smi -i {card.index} -c "
            "DEFAULT",
            weight=Weight.NOTE,
        )


# ---- other processes


def _others(card: CardFacts) -> Iterator[DiagnosisFinding]:
    known = sum(process.used_bytes or 0 for process in card.processes)
    hidden = card.used_bytes - known
    is_told = all(process.used_bytes is not None for process in card.processes)
    held = max(known, card.used_bytes - _HIDDEN_BYTES_IGNORED)
    if held <= 0:
        return
    names = _listed(card.processes)
    unseen = is_told and hidden > _HIDDEN_BYTES_IGNORED
    yield DiagnosisFinding(
        name="others",
        title=f"Other processes use {text_of_bytes(card.used_bytes)} of {text_of_bytes(card.total_bytes)} on "
        f"{_name(card)}",
        seen=(names or "no process is visible")
        + (f"; {text_of_bytes(hidden)} more by processes that are not visible from here" if unseen and names else ""),
        why="That memory is not available to new processes"
        + ("; processes of other containers are not listed here." if unseen else "."),
        cure="Wait, choose another GPU (CUDA_VISIBLE_DEVICES), or end one of your processes: kill PID",
        weight=Weight.PROBLEM if held >= _NOTABLE_SHARE * card.total_bytes else Weight.NOTE,
    )


def _ghosts(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    for card in facts.cards:
        ghosts = [process for process in card.processes if process.is_ours and process.is_orphan]
        if ghosts:
            yield DiagnosisFinding(
                name="ghosts",
                title=f"Orphaned processes hold memory of {_name(card)}",
                seen=_listed(ghosts),
                why="These processes belong to you, and their parent process has ended. Their memory is freed only "
                "when they end.",
                cure=f"If you do not need them: kill {' '.join(str(process.pid) for process in ghosts)}",
            )
        workers = [process for process in card.processes if process.is_worker and process not in ghosts]
        if workers:
            yield DiagnosisFinding(
                name="workers-on-card",
                title=f"DataLoader workers hold memory of {_name(card)}",
                seen=_listed(workers),
                why="Each worker that uses CUDA creates its own CUDA context, which takes hundreds of MiB from the "
                "training.",
                cure="Do not use CUDA in the dataset or in collate_fn; move batches to the GPU in the training loop.",
            )


def _strays(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    cards_of: dict[int, list[CardFacts]] = {}
    for card in facts.cards:
        for process in card.processes:
            if process.is_ours:
                cards_of.setdefault(process.pid, []).append(card)
    several = {pid: cards for pid, cards in cards_of.items() if len(cards) > 1}
    for card in facts.cards:
        has_owner = any(cards == [card] for cards in cards_of.values())
        strays = [
            process
            for process in card.processes
            if len(several.get(process.pid, [])) == 2 and several[process.pid][0] is card
        ]
        if (
            strays
            and (has_owner or len(strays) > 1)
            and len({several[one.pid][1].index for one in strays}) == len(strays)
        ):
            held = sum(process.used_bytes or 0 for process in strays)
            yield DiagnosisFinding(
                name="strays",
                title=f"{len(strays)} processes of other GPUs hold {text_of_bytes(held)} of {_name(card)}",
                seen=_listed(strays),
                why="Each of these processes used CUDA before it selected its own GPU, so it also has a CUDA context "
                "on this GPU.",
                cure="Call torch.cuda.set_device(local_rank) before anything else, and torch.load(..., "
                "map_location='cpu').",
            )


def _listed(processes: Iterable[CardProcess]) -> str:
    return ", ".join(map(_text, sorted(processes, key=lambda process: -(process.used_bytes or 0))))


def _text(process: CardProcess) -> str:
    size = text_of_bytes(process.used_bytes) if process.used_bytes is not None else "an unknown amount"
    whose = "" if process.is_ours else ", not yours" if process.name else ", not visible from here"
    return f"{size} by process {process.pid}" + (f" ({process.name}{whose})" if process.name else whose)


def _name(card: CardFacts) -> str:
    return f"GPU {card.index} ({card.name})"
