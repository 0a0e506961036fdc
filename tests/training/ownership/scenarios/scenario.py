"""What a scenario is, and where they are. It imports no torch: pytest collects where torch cannot be imported."""

import ast
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

End = Callable[..., None]
"""Called at a scenario's end, where its user would call `ullage.release`, with its variables still alive.

Its arguments are what the user thinks of (the model, the optimizer); `named` is what a certificate names to them, and
what they pass the second time; a function that returns it, where it has a name only elsewhere.
"""

_REGISTER: dict[str, "Scenario"] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One script and what is to be found at its end."""

    name: str
    title: str
    run: Callable[[End], None]
    holder: str
    """A piece of the text of the path to what the culprit holds."""
    kind: str
    mib: float
    """What the culprit holds at least."""
    stays: bool
    """`release` does not end it (a function, an iterator, a thread): it may remain, if the certificate names it."""


def scenario(
    title: str,
    *,
    holder: str,
    kind: str = "local",
    mib: float = 2,
    stays: bool = False,
    needs: str = "",
    slow: bool = False,
    until: str = "",
    fails: str = "",
) -> Callable[[Callable[[End], None]], Callable[[End], None]]:
    """Record a script with what is to be found at its end; it is left out where the package it needs is not there.

    `until` is the first torch where there is nothing to find: from 2.15 on workspaces are not the allocator's. `fails`
    says what is not as it should be yet.
    """

    def record(run: Callable[[End], None]) -> Callable[[End], None]:
        name = run.__name__
        _REGISTER[name] = Scenario(name=name, title=title, run=run, holder=holder, kind=kind, mib=mib, stays=stays)
        return run

    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a scenario is, and what it needs."""

    name: str
    module: str
    needs: str
    until: str
    is_slow: bool
    fails: str

    @property
    def reason(self) -> str:
        """Why it cannot be run here; empty where it can."""
        if self.until and is_from(self.until):
            return f"from torch {self.until} on there is nothing to find"
        is_there = not self.needs or importlib.util.find_spec(self.needs) is not None
        return "" if is_there else f"{self.needs} is not installed"


def is_from(version: str) -> bool:
    """Tell whether the torch that is installed is this version or a later one."""
    installed = importlib.metadata.version("torch").split(".")
    return [int(part) for part in installed[:2]] >= [int(part) for part in version.split(".")]


def entries() -> list[Entry]:
    """List the scenarios in the order of their source, without importing them."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(statement, ast.FunctionDef):
                continue
            for decorator in statement.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "scenario":
                    options: dict[str, Any] = {
                        keyword.arg or "": ast.literal_eval(keyword.value) for keyword in decorator.keywords
                    }
                    found.append(
                        Entry(
                            name=statement.name,
                            module=f"{__package__}.{path.stem}",
                            needs=options.get("needs", ""),
                            until=options.get("until", ""),
                            is_slow=options.get("slow", False),
                            fails=options.get("fails", ""),
                        )
                    )
    return found


def load(entry: Entry) -> Scenario:
    """Import a scenario."""
    importlib.import_module(entry.module)
    return _REGISTER[entry.name]
