"""What values ask of the emulated runtime."""

from typing import Protocol

from ullage.gpu.values.content import UnseenWrites


class EmulatedDriver(Protocol):
    """What values ask of the emulated runtime: `ullage.gpu.emulator.library`."""

    def answer(self, number: int | None, /) -> None:
        """Answer what the calling thread reads back from the card with a number; None: with zero again."""

    def remember_sent(self, *, on: bool) -> None:
        """Keep what each thread sends to the card last."""

    def sent_is_noted(self, is_noted: bool, /) -> None:  # noqa: FBT001  # called for each copy, by place
        """Have what the calling thread sends to the card not be kept, or again."""

    def take_sent(self, address: int, size_bytes: int, destination: int, /) -> bool:
        """Write what the calling thread's last copy to the card was to an address on the host."""

    def watch_writes(self, is_seen: int | None, key: int) -> UnseenWrites:
        """Count writes on the card by threads of which a function at an address says that they are not seen."""

    def leave_memory(self, leaves: bool) -> None:  # noqa: FBT001  # called for each operator, by place
        """Have copies and fills of the calling thread leave the card's memory as it is, or no longer."""
