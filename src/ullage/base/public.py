"""A decorator that sets the `__module__` of public classes and functions to `ullage`."""

from typing import TypeVar

Thing = TypeVar("Thing")


def public(thing: Thing) -> Thing:
    """Set the `__module__` of a class or function to `ullage`.

    Tracebacks, `help` and pickles then show the stable path `ullage.Guard` and not a path in `ullage.training`.
    """
    thing.__module__ = "ullage"
    return thing
