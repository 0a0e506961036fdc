"""What is left of a card beside what a process has reserved."""

from ullage.recording.facts import Card
from ullage.recording.live import Sample


def headroom_bytes(card: Card, last: Sample, most_reserved_bytes: int, used_bytes: int | None = None) -> int:
    """Return what the highest reserved has left beside contexts and other processes; below zero: others came later.

    Args:
        card: of the sample.
        last: the latest sample.
        most_reserved_bytes: that the process had reserved.
        used_bytes: what the driver says now is used of the card; what it said last, where it is left out.
    """
    used = last.used_bytes if used_bytes is None else used_bytes
    others = max(0, used - last.reserved_bytes)  # and nothing where the driver has never been asked
    return min(card.limit_bytes, card.total_bytes - others) - most_reserved_bytes
