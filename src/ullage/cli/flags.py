"""Replace Python keywords in error messages with command-line flags.

A Python function reports "world_size=9 is out of range". On the command line, the same error is "--world-size 9 is out
of range".
"""

import re
from collections.abc import Iterator
from typing import Any

from ullage.base.errors import keyword_of


def with_flags(text: str, group: Any) -> str:
    """Replace each `keyword=` in an error message with the flag of that option.

    Args:
        text: the message, for example "rank=9 is not a rank; give world_size= too".
        group: the click group whose commands define the options.
    """
    flags = dict(_flags(group))
    pattern = re.compile(
        rf"(?<![\w=.'\"-])({'|'.join(map(re.escape, flags))})=(True\b|(?=[^\s,;)])(?!\.(?:$|\s+[A-Z])))?"
    )
    return pattern.sub(lambda match: _replacement(flags[match[1]], match[2]), text)


def _replacement(flag: str, value: str | None) -> str:
    return f"{flag} " if value == "" else flag


def _flags(group: Any) -> Iterator[tuple[str, str]]:
    for command in group.commands.values():
        for parameter in command.params:
            long = [flag for flag in parameter.opts if flag.startswith("--")]
            if long:
                yield keyword_of(long[0]), long[0]
                yield parameter.name, long[0]
