"""Random changes to inputs: to bytes, to nested values (a snapshot's, JSON's), and to texts."""

import copy
import random
import re
from collections.abc import Callable
from typing import Any, Final

_INTERESTING_BYTES: Final = (b"\xff\xff\xff\x7f", b"\xff" * 4, b"\0" * 4, b"\0\0\0\x80", b"\xff" * 8)
_OPCODES: Final = (
    b"()NIJKMLFGSUVXTCB]}tlduaes.pqrghj012\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x94\x95cRbio\x93\x81"
)
"""Opcodes of Python's pickle."""
_SCALARS: Final[tuple[Any, ...]] = (
    0, 1, -1, 2, 511, 512, (1 << 20) - 1, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 62), (1 << 63) - 1, 1 << 63,
    -(1 << 63), (1 << 64) - 1, 1 << 64, 10**30, 0.0, -0.5, 1e308, float("nan"), float("inf"), float("-inf"), None, True,
    False, "", "x", "train.py", "a\nb", "\x1b[31mred", "\u202e", "\ud800", "\0", "[bold]", "<script>", "/" * 300,
    "n" * 100_000, b"bytes", "alloc", "free_completed", "segment_map", "oom", "snapshot", (), [], {},
)  # fmt: skip
_NUMBERS: Final = (
    "0",
    "-1",
    "1",
    "99999999999999999999",
    "1e400",
    "nan",
    "inf",
    "-0.00",
    "1.5.2",
    "٣",
    "18446744073709551615",
)
_WORDS: Final = (
    "",
    "\0",
    "\x1b[2J",
    "\ufeff",
    "GiB",
    "MiB",
    "bytes",
    "%s",
    "{}",
    "[/]",
    "[rank1]:",
    "GPU 0",
    "\r",
    "CUDA out of memory.",
)


_PIECES: Final = (
    "x", "Backward", "AddmmBackward0", "Backward<", "<", ">", "::apply", ">::apply", "at::_ops::", "::call", "::",
    "autograd::", "autograd::Engine::", "AccumulateGrad", "_pin", "optim/", "/torch/optim/", "\\", "/", ".so", ".so.1",
    ".py", "1", "12", " ", "\t", "\n", "\0", "\x1b[31m", "\u202e", "\u4e2d", "a.b", "c[0]", "[", "a[", "]",
    "(", "((", "{", "'", '"', '\\"', "token=", "password: ", "hf_", "eyJ.", "sk-", "a@", "://", "ProfilerStep#", "step",
    "_", "__", "-", "=", "&", "%3D", "&amp;", "<b>", "std::vector<", "std::pair<int, ", "site-packages/", "model.to(",
    "<eval_with_key>", "<ipython-input-1-", "GatheredParameters", "vae", "loader", "e", "E5", "0x", "\ud7ff", "A_", "A",
    "-----BEGIN RSA-----",
)  # fmt: skip
"""What names are made of: what patterns of the readers look for, and signs that are special somewhere."""


def long_name(chance: random.Random, length: int) -> str:
    """Return a name of about a number of characters: few pieces, repeated, so that many places in it look alike."""
    repeated = "".join(chance.choices(_PIECES, k=chance.choice((1, 1, 2, 3))))
    head, tail = (chance.choice(("", *chance.choices(_PIECES, k=3))) for _ in range(2))
    return head + repeated * max(1, length // len(repeated)) + tail


def damage_bytes(base: bytes, chance: random.Random) -> bytes:
    """Change a few opcodes, lengths and values of a pickle, or of anything that is bytes."""
    data = bytearray(base)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
        if not data:
            break
        at = chance.randrange(min(2, len(data) - 1) if chance.random() < 0.9 else 0, len(data))
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
                data[at : at + 4] = chance.choice(_INTERESTING_BYTES)
            case 6:
                data[at] = chance.choice(_OPCODES)
            case 7:  # the value of a whole number of four bytes: J, or the low bytes of a long one
                found = data.find(chance.choice((b"J", b"\x8a\x06", b"M")), at)
                data[found + 1 : found + 3] = chance.randbytes(2)
    if data and chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def change_value(base: Any, chance: random.Random) -> Any:
    """Return a copy of nested lists, dictionaries and plain values with a few of them changed."""
    whole = [copy.deepcopy(base)]
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4, 12))):
        holder, key = _some_place(whole, chance)
        _CHANGES[chance.randrange(len(_CHANGES))](holder, key, whole, chance)
    return whole[0]


def change_text(base: str, chance: random.Random) -> str:
    """Change figures, words and lines of a text."""
    text = base
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        match chance.randrange(9):
            case 8:
                at = chance.randrange(len(text) + 1)
                text = text[:at] + long_name(chance, chance.choice((20, 300, 20_000))) + text[at:]
            case 0 | 1 | 2:
                found = list(re.finditer(r"\d[\d.]*", text))
                if found:
                    one = chance.choice(found)
                    text = text[: one.start()] + _number(one[0], chance) + text[one.end() :]
            case 3:
                words = text.split(" ")
                at = chance.randrange(len(words))
                words[at : at + chance.randrange(3)] = [chance.choice((*_WORDS, chance.choice(words)))]
                text = " ".join(words)
            case 4:
                lines = text.split("\n")
                chance.shuffle(lines)
                text = "\n".join(lines)
            case 5:
                lines = text.split("\n")
                at = chance.randrange(len(lines))
                lines[at:at] = lines[at : at + chance.randrange(1, 4)] * chance.choice((1, 2, 50))
                text = "\n".join(lines)
            case 6:
                text = text[: chance.randrange(len(text) + 1)]
            case 7:
                at = chance.randrange(len(text) + 1)
                text = text[:at] + chance.choice(_WORDS) + text[at:]
    return text


def _number(text: str, chance: random.Random) -> str:
    if chance.random() < 0.5:
        return chance.choice(_NUMBERS)
    return text.replace(chance.choice("0123456789"), str(chance.randrange(1000)))


def _some_place(whole: list[Any], chance: random.Random) -> tuple[Any, Any]:
    """A list or dictionary somewhere within, and an index or key of it."""
    holder, key = whole, 0
    while True:
        value = holder[key]
        if not isinstance(value, list | dict) or not value or chance.random() < 0.12:
            return holder, key
        holder, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))


def _replace(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    holder[key] = chance.choice(_SCALARS)


def _nudge(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if isinstance(value := holder[key], int):
        holder[key] = chance.choice((value + 1, value - 1, -value, value * 2, value // 2, value + 512, value ^ 1 << 40))
    else:
        _replace(holder, key, whole, chance)


def _delete(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if holder is not whole:
        del holder[key]


def _take_another(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    """Put there what is somewhere else: the same object, which a pickle then names twice."""
    other, place = _some_place(whole, chance)
    if not _is_within(holder, other[place]):
        holder[key] = other[place]


def _is_within(inner: Any, outer: Any) -> bool:
    """Tell whether a value is part of another, which would hold itself then."""
    if inner is outer:
        return True
    parts = outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
    return any(_is_within(inner, part) for part in parts if isinstance(part, list | dict))


def _repeat(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if isinstance(holder, list) and holder is not whole:
        holder[key:key] = [holder[key]] * chance.choice((1, 1, 3, 3000))
    elif isinstance(holder, dict):
        holder[chance.choice((f"{key}_", "frames", "oom", 7))] = holder[key]


def _wrap(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 30))):
        holder[key] = [holder[key]] if chance.random() < 0.7 else {"x": holder[key]}


def _swap(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    other = chance.choice(keys)
    holder[key], holder[other] = holder[other], holder[key]


def _shuffle(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if isinstance(value := holder[key], list):
        chance.shuffle(value)
    else:
        _nudge(holder, key, whole, chance)


def _cut(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if isinstance(value := holder[key], list | str):
        holder[key] = value[: chance.randrange(len(value) + 1)]
    else:
        _nudge(holder, key, whole, chance)


def _lengthen(holder: Any, key: Any, whole: list[Any], chance: random.Random) -> None:
    if isinstance(holder[key], str):
        holder[key] = long_name(chance, chance.choice((30, 1_000, 30_000)))
    else:
        _nudge(holder, key, whole, chance)


_CHANGES: Final[tuple[Callable[[Any, Any, list[Any], random.Random], None], ...]] = (
    _replace, _replace, _nudge, _nudge, _nudge, _delete, _take_another, _repeat, _wrap, _swap, _shuffle, _cut,
    _lengthen,
)  # fmt: skip
