"""Levers: what can be changed without a change to the script, and may make room."""

import os
from dataclasses import dataclass, replace
from typing import Final

from ullage.prediction.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change: how people call it, and what to write for it."""

    name: str
    how: str
    alloc_conf: str | None = None
    optimizer_default: str | None = None

    def pull(self, request: Request) -> Request:
        """Return the request with the change made; an allocator setting joins those that are there."""
        given = request.alloc_conf or _environments_settings()
        settings = [text for text in (given, self.alloc_conf) if text]
        return replace(
            request,
            alloc_conf=",".join(settings) if self.alloc_conf else request.alloc_conf,
            optimizer_default=self.optimizer_default or request.optimizer_default,
        )

    def changes(self, request: Request) -> bool:
        """Tell whether pulling it makes a difference to what is asked for."""
        name = (self.alloc_conf or "").partition(":")[0]
        return not name or name not in (request.alloc_conf or _environments_settings())


def _environments_settings() -> str:
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


LEVERS: Final = (
    Lever(
        name="expandable segments",
        how="expandable_segments:True",
        alloc_conf="expandable_segments:True",
    ),
    Lever(
        name="no split of large blocks",
        how="max_split_size_mb:128",
        alloc_conf="max_split_size_mb:128",
    ),
    Lever(name="fused optimizer", how="AdamW(..., fused=True)", optimizer_default="fused"),
    Lever(name="for-loop optimizer", how="AdamW(..., foreach=False)", optimizer_default="foreach=False"),
)
