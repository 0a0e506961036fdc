"""What the allocator did lately is taken in also where a signal's handler or a finalizer breaks in."""

from types import SimpleNamespace

from ullage.gpu.tracing.journal import RecentBlocks


def test_a_handler_that_breaks_in() -> None:
    """It does not wait for the thread that it has interrupted, and what it has put is not taken for new memory."""
    told: list[int | None] = []

    def forget(address: int | None) -> None:
        told.append(address)
        if address == 0x200 and not told.count(None):  # an allocation within a finalizer
            entries.append(SimpleNamespace(address=0x900, size=512))
            count.value = len(entries)
            blocks.follow()
            assert 0x900 not in blocks.sizes

    blocks = RecentBlocks(forget)
    entries = [SimpleNamespace(address=address, size=512) for address in (0x100, 0x200, 0x300)]
    count = SimpleNamespace(value=len(entries))
    blocks._count, blocks._entries, blocks._seen = count, entries, 0  # type: ignore[assignment]
    blocks.follow()
    assert told[:2] == [0x100, 0x200]
    assert told[-1] is None, "all is forgotten at the end"
    assert blocks.sizes == {}
    entries.append(SimpleNamespace(address=0x400, size=1024))
    count.value = len(entries)
    blocks.follow()
    assert blocks.sizes == {0x400: 1024}
    assert told[-1] == 0x400
