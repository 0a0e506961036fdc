"""The mark of what users import from `ullage` itself."""

from typing import TypeVar

Thing = TypeVar("Thing")


def public(thing: Thing) -> Thing:
    """Have a class or a function say that it is `ullage`'s own, whatever module it is written in.

    Tracebacks, `help` and pickles then name the path that is stable: `ullage.Guard`, not its module in
    `ullage.training`.
    """
    thing.__module__ = "ullage"
    return thing
