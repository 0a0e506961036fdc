"""The decorator for the classes and functions that users import from `ullage`."""

from typing import TypeVar

Thing = TypeVar("Thing")


def public(thing: Thing) -> Thing:
    """Make a class or function report `ullage` as its module, whatever module defines it.

    Tracebacks, `help` and pickles then show the stable path, `ullage.Guard`, and not a module in `ullage.training`.
    """
    thing.__module__ = "ullage"
    return thing
