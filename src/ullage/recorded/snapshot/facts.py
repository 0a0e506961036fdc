"""What the keys of a snapshot file show: the PyTorch versions that can have written it, and what ullage ignores."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ullage.base.source_location import shortened
from ullage.base.visible import visible
from ullage.recorded.history import ACTIONS
from ullage.recorded.release import Release

# The keys of each part of a file, as torch 1.13 to 2.15 write them.
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "the file": frozenset(
        ("segments", "device_traces", "allocator_settings", "external_annotations", "host_segments", "host_traces")
    ),
    "segments": frozenset(
        (
            *("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"),
            *("segment_type", "segment_pool_id", "is_expandable", "blocks", "frames"),
        )
    ),
    "blocks": frozenset(("address", "size", "requested_size", "state", "frames", "history", "real_size")),
    "trace entries": frozenset(
        (
            *("action", "addr", "device_free", "size", "stream", "time_us", "frames"),
            *("user_metadata", "internal_metadata", "compile_context", "pool_id"),
        )
    ),
    # The keys with fx_ come from _dump_snapshot(augment_with_fx_traces=True), since torch 2.12.
    "stack frames": frozenset(
        (
            *("name", "filename", "line"),
            *("fx_node_op", "fx_node_name", "fx_node_target", "fx_node_info", "fx_original_trace"),
        )
    ),
}
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the keys of a snapshot file show."""

    release: Release
    unknown_keys: tuple[str, ...]
    """The unknown keys and actions, each with the part of the file that has it, such as "origin of trace entries"."""

    @classmethod
    def of(cls, found: Mapping[str, Any], root: Mapping[str, Any]) -> "FileFacts":
        """Return the facts about a snapshot file.

        Args:
            found: the tables that the pickle reader returned.
            root: the dictionary that the file contains.
        """
        texts, entries = found["texts"], found["entry_keys"]
        actions = {texts[number] for number in np.unique(found["action"]).tolist()}
        settings = root.get("allocator_settings")
        segments = [part for part in root.get("segments") or () if isinstance(part, dict)]
        blocks = (block for part in segments for block in part.get("blocks") or () if isinstance(block, dict))
        unknown = (
            *_unknown("the file", root),
            *_unknown("segments", _keys_of(segments)),
            *_unknown("blocks", _keys_of(blocks)),
            *_unknown("trace entries", entries),
            *_unknown("stack frames", found["frame_keys"]),
            *(f"the action {shortened(action)}" for action in sorted(actions - ACTIONS.keys())),
        )
        return cls(
            release=Release.of(
                root=root if "device_traces" in root else (),
                settings=settings if isinstance(settings, dict) else (),
                entries=entries,
                actions=actions,
            ),
            unknown_keys=unknown[:_MOST_NAMED],
        )


def _keys_of(parts: Iterable[Mapping[str, Any]]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        found |= part.keys()
    return found


def _unknown(part: str, keys: Collection[Any]) -> Iterator[str]:
    unknown = sorted(set(map(str, keys)) - _KNOWN[part])
    yield from (f"{shortened(visible(key))} of {part}" for key in unknown)
