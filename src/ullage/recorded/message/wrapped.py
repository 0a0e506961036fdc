"""Repairs messages that a terminal has wrapped: it joins the lines and parses the message again.

The width of the terminal is unknown. So a joined message is used only if it has at least as many figures as the
original text, or if the original text has no message that is certain.
"""

from dataclasses import fields, replace
from typing import Final

from ullage.recorded.message.message import WINDOW, Hit, Message, hits_of

_NARROWEST, _WIDEST = 40, 400  # the fewest and the most columns of a terminal
_FIGURES: Final = tuple(field.name for field in fields(Message) if field.name.endswith("_bytes"))


def read_again(text: str, hit: Hit) -> Hit:
    """Join the lines of a message that a terminal has wrapped, and parse the message again.

    Return the new result if it contains more memory figures. Otherwise, return the old result.
    """
    begin = text.rfind("\n", max(0, hit.start - _WIDEST - 1), hit.start) + 1
    rows = text[begin : hit.start + WINDOW].split("\n")
    width = len(rows[0].rstrip("\r"))
    if not _NARROWEST <= width <= _WIDEST or hit.start - begin > width:
        return hit
    width = max(width, len(rows[1].rstrip("\r")) if len(rows) > 2 else 0)
    again = next(hits_of(_joined(rows, width), hit.start - begin, hit.start - begin + 1), None)
    if again is None:
        return hit
    new, old = _figures(again.message), _figures(hit.message)
    is_cut_twice = len(rows) > 2 and len(rows[0].rstrip("\r")) == len(rows[1].rstrip("\r"))
    if len(new) < len(old) + (not is_cut_twice) or new == old:
        return hit
    return replace(hit, message=again.message)


def find_in_cut_rows(text: str) -> tuple[Hit, str, int] | None:
    """Find an out-of-memory message in lines that a terminal has wrapped. Return it with the joined text and its line
    number.
    """
    rows = text.split("\n")
    lengths = [len(row.rstrip("\r")) for row in rows]
    width = max(lengths)
    if not _NARROWEST <= width <= _WIDEST or width not in lengths[:-1]:
        return None
    for glue in ("", " "):  # If every full line has lost the space at its end, no line shows how wide the terminal was.
        together = _joined(rows, width, glue)
        hit = next(hits_of(together), None)
        if hit is not None:
            break
    else:
        return None
    left, row = together.count("\n", 0, hit.start), 0
    # Each line that was not joined to the previous line corresponds to one of these.
    while left and row < len(rows) - 1:
        left -= lengths[row] < width
        row += 1
    while row < len(rows) - 1 and lengths[row] == width and hit.message.text[:12] not in rows[row]:
        row += 1
    return hit, together, row


# A line that is one column shorter than the terminal lost the space at its end.
def _joined(rows: list[str], width: int, glue: str = "") -> str:
    parts: list[str] = []
    for row in rows:
        bare = row.rstrip("\r")
        parts.append(bare + (glue if len(bare) == width else " " if len(bare) == width - 1 else "\n"))
    return "".join(parts)


def _figures(message: Message) -> dict[str, object]:
    known = {name: getattr(message, name) for name in _FIGURES}
    return {name: value for name, value in known.items() if value is not None} | dict(message.said)
