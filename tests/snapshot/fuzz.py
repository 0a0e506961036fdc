"""Damage a snapshot again and again, and read what came of it: `fuzz.py SEED COUNT SNAPSHOT SCRATCH`.

Under a limit of 2 GiB of address space. Each file ends in one sentence, or is read; what is read is explained too.
Prints how many did what, as JSON. Exits 1, and leaves SCRATCH as it is, at the first that does anything else.
"""

import collections
import io
import json
import random
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from rich.console import Console

from ullage._errors import UllageError
from ullage.analysis.describe import describe
from ullage.analysis.explain import explain
from ullage.history import History
from ullage.report.terminal import draw
from ullage.snapshot.snapshot import SnapshotError, load_snapshot

ADDRESS_SPACE_BYTES = 2 << 30
SECONDS = 10
HEADER_BYTES = 20
INTERESTING = (b"\xff\xff\xff\x7f", b"\xff" * 4, b"\0" * 4, b"\0\0\0\x80")
OPCODES = b"()NIJKMLFGSUVXTCB]}tlduaes.pqrghj012\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x94\x95cRbio\x93\x81"


def damaged(base: bytes, chance: random.Random) -> bytes:
    """A file with a few of its opcodes, lengths and values changed."""
    data = bytearray(base)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
        at = chance.randrange(2 if chance.random() < 0.9 else 0, len(data))
        match chance.randrange(8):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + chance.randrange(1, 9)]
            case 3:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                data[at:at] = data[chance.randrange(len(data)) :][: chance.randrange(1, 60)]
            case 5:
                data[at : at + 4] = chance.choice(INTERESTING)
            case 6:
                data[at] = chance.choice(OPCODES)
            case 7:  # the value of a whole number of four bytes: J, or the low bytes of a long one
                found = data.find(chance.choice((b"J", b"\x8a\x06", b"M")), at)
                data[found + 1 : found + 3] = chance.randbytes(2)
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


class TooSlow(BaseException):
    """Not an Exception, so that nobody takes it for an answer."""


def too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def ending(path: Path) -> str:
    """What came of a file: "read", or "header" or "refused" by how far it was read."""
    try:
        snapshot = load_snapshot(path)
    except SnapshotError as error:
        text = str(error)
        assert "\n" not in text, text
        assert len(text) < 500, text
        at = text.rpartition("at byte ")[2].split()[0].rstrip(")") if "at byte " in text else ""
        return "header" if at.isdigit() and int(at) <= HEADER_BYTES else "refused"
    for history in snapshot.devices.values():
        ask(history)
    return "read"


def ask(history: History) -> None:
    """Explain a history, as it is and on a smaller card, and show it."""
    for capacity_bytes in (None, 64 << 20):
        try:
            explanation = explain(history, capacity_bytes=capacity_bytes)
            draw(describe(explanation), Console(file=io.StringIO(), width=80))
            json.dumps(explanation.to_json())
        except UllageError as error:
            if "\n" in str(error):
                raise AssertionError(str(error)) from error


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    signal.signal(signal.SIGALRM, too_slow)
    seed, count, base, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).read_bytes(), Path(sys.argv[4])
    chance = random.Random(seed)
    endings: collections.Counter[str] = collections.Counter()
    for number in range(count):
        path.write_bytes(damaged(base, chance))
        signal.alarm(SECONDS)
        try:
            endings[ending(path)] += 1
        except BaseException:
            print(f"file {number} of seed {seed}:", file=sys.stderr)
            traceback.print_exc()
            return 1
        signal.alarm(0)
    print(json.dumps({"files": count, "past_header": count - endings["header"], **endings}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
