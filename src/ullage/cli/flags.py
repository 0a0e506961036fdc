"""Replace the names of options in error messages: keywords in Python, flags on the command line.

A function of `ullage.api` names its own keyword in an error: "world_size=9 is out of range". The command line shows the
same error with the name that its user typed: "--world-size 9 is out of range".
"""

import re
from collections.abc import Iterator
from typing import Any


def with_flags(text: str, group: Any) -> str:
    """Return an error message in which the flag of an option replaces each `keyword=` of the same option.

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
                yield long[0].removeprefix("--").replace("-", "_"), long[0]
                yield parameter.name, long[0]
