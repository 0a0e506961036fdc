"""The decorator for the classes and functions that users import from `ullage`."""

from typing import TypeVar

Thing = TypeVar("Thing")


def public(thing: Thing) -> Thing:
    """Set the module of a class or function to `ullage`, whatever module defines it.

    Tracebacks, `help` and pickles then show the stable path `ullage.Guard` and not a path in `ullage.training`.
    """
    thing.__module__ = "ullage"
    return thing
