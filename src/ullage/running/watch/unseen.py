"""The limits of the view, one sentence each: what cannot be seen in a container, under WSL, or without a driver."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ullage.running.diagnosis.facts import CardFacts


def sees_host_processes(root: Path = Path("/")) -> bool:
    """Tell whether process numbers here are the host's, as the driver's are: only there is process 2 the kernel's."""
    try:
        return (root / "proc/2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def notes_of(cards: Iterable[CardFacts], why_silent: str, *, root: Path = Path("/")) -> Iterator[str]:
    """Yield what limits the view.

    Args:
        cards: the cards that the driver reports.
        why_silent: why the driver cannot be asked; empty if it answers.
        root: the root of the file system.
    """
    if (root / "dev/dxg").exists():
        yield (
            "This is WSL: Windows' driver does not tell which process holds how much, and its sum for a card counts "
            "Windows' own programs; runs of `ullage run` are seen whole."
        )
    elif not why_silent and not sees_host_processes(root):
        yield (
            "This is a container: the driver numbers processes as the host does, so those on the cards have no names "
            "here, or are not listed; the cards' sums are right, and runs of `ullage run` in here are seen whole."
        )
    if why_silent:
        yield f"No card can be asked: {why_silent}; what is shown of cards is what runs say."
        return
    if not (root / "dev/dxg").exists() and any(one.used_bytes is None for card in cards for one in card.processes):
        yield "The driver does not tell how much some processes hold (it answers so for MIG, and without permission)."
