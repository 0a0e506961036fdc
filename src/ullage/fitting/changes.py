"""Changes that may make room and leave the script as it is."""

import os
from dataclasses import dataclass, replace
from typing import Final

from ullage.emulator.torch_build import find_torch
from ullage.prediction.request import Request
from ullage.settings import semantics_of, settings_in_force, split_options, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class FitChange:
    """One change: its name for people, and what to write for it."""

    name: str
    how: str
    alloc_conf: str | None = None
    optimizer_default: str | None = None

    def apply(self, request: Request) -> Request:
        """Return the request with the change made; an allocator setting is added to those that are there."""
        return replace(
            request,
            alloc_conf=with_options(_given(request), self.alloc_conf) if self.alloc_conf else request.alloc_conf,
            optimizer_default=self.optimizer_default or request.optimizer_default,
        )

    def applies_to(self, request: Request) -> bool:
        """Return whether the change makes a difference to the request."""
        options = dict(split_options(self.alloc_conf or ""))
        return not options or not options.keys() & dict(split_options(_given(request))).keys()

    def what_to_write(self, request: Request) -> str:
        """Return how to make the change; for an allocator setting, the whole text to set."""
        return self.apply(request).alloc_conf or self.how if self.alloc_conf else self.how


def _given(request: Request) -> str:
    """Return the run's allocator settings before any change: those asked for, or those of this environment."""
    if request.alloc_conf is not None:
        return request.alloc_conf
    return settings_in_force(os.environ, semantics_of(find_torch().version))[0]


CHANGES: Final = (
    FitChange(
        name="expandable segments",
        how="expandable_segments:True",
        alloc_conf="expandable_segments:True",
    ),
    FitChange(
        name="no split of large blocks",
        how="max_split_size_mb:128",
        alloc_conf="max_split_size_mb:128",
    ),
    FitChange(name="fused optimizer", how="AdamW(..., fused=True)", optimizer_default="fused"),
    FitChange(name="for-loop optimizer", how="AdamW(..., foreach=False)", optimizer_default="foreach=False"),
)
