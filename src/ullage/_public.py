"""The mark of what users import from `ullage` itself."""

from typing import TypeVar

Thing = TypeVar("Thing")


def public(thing: Thing) -> Thing:
    """Have a class or a function say that it is `ullage`'s own, whatever module it is written in.

    Tracebacks, `help` and pickles then name the path that is stable: `ullage.Guard`, not `ullage.guard.guard.Guard`.
    """
    thing.__module__ = "ullage"
    return thing
