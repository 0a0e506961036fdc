"""The hooks in torch's DataLoader: what it hands out is decided here, and every `next()` is noticed.

The loader itself fetches, collates and pins, in its workers too. Only the sampler that it asks is ours: it gives what
the script's own would give, until somebody knows better which batch to run. Accelerate's loaders go round torch's, one
batch ahead and with the batch moved to the card, so a step begins where theirs is asked.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loader

from ullage.gpu.tracing.torch_import import ImportWatch


@dataclass(slots=True, eq=False)
class Feed:
    """What one pass over a loader hands out."""

    loader: Any
    own: Iterator[Any]
    """The rest of the script's own sampler."""
    _listener: "LoaderListener"
    handed: list[int] = field(default_factory=list)
    """The place in the epoch's order of each batch that was handed out; -1: none of it."""
    given: list[Any] = field(default_factory=list)
    """The batches in the order of the epoch, as far as they were handed out before there was a plan."""
    delivered: int = 0
    source: "Source | None" = None
    """The asking of this pass, where the training loop asks torch's loader itself."""
    choose: Callable[[], Any] | None = None
    """Chooses what to hand out next; None: the sampler's own next."""

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> Any:
        self._listener.before_handing_out(self)
        if self.choose is not None:
            return self.choose()
        batch = next(self.own)
        self.handed.append(len(self.given))
        self.given.append(batch)
        return batch


@dataclass(slots=True, eq=False)
class Source:
    """What the training loop asks for its batches: a pass over torch's loader, or over what goes round it."""

    feed: Feed | None
    calls: int = 0
    """The number of times that it was asked."""
    backward_passes: int = 0
    """The backward passes of the process at the last call."""


class LoaderListener(Protocol):
    """Who is told."""

    def before_handing_out(self, feed: Feed) -> None:
        """A batch is about to be chosen."""

    def before_next(self, source: Source) -> None:
        """The training loop asks for a batch."""

    def delivered(self, feed: Feed, batch: Any) -> None:
        """A batch was fetched."""

    def ended(self, source: Source) -> None:
        """There is no further batch."""


class _Sampler:
    """Stands in for the sampler that a pass over a loader asks."""

    def __init__(self, loader: Any, own: Any, listener: LoaderListener) -> None:
        self._loader, self._own, self._listener = loader, own, listener

    def __iter__(self) -> Feed:
        return Feed(self._loader, iter(self._own), self._listener)

    def __len__(self) -> int:
        return len(self._own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class LoaderHooks:
    """Hooks from `install` to `remove`."""

    def __init__(self, listener: LoaderListener) -> None:
        self._listener = listener
        self._undo = ExitStack()
        self._outer: list[Source] = []
        """The passes around torch's loader that are just being asked."""

    def install(self) -> None:
        """Install the hooks."""
        own_sampler: Any = DataLoader.__dict__["_index_sampler"]
        own_next = torch_loader._BaseDataLoaderIter.__next__

        def index_sampler(loader: Any) -> Any:
            return _Sampler(loader, own_sampler.fget(loader), self._listener)

        self._set(DataLoader, "_index_sampler", property(index_sampler))
        self._set(torch_loader._BaseDataLoaderIter, "__next__", lambda iterator: self._next(iterator, own_next))
        if (module := sys.modules.get("accelerate.data_loader")) is not None:
            self._watch_accelerate(module)
        else:
            ImportWatch("accelerate.data_loader", before=lambda: None, after=self._watch_accelerate).install()

    def remove(self) -> None:
        """Take the hooks away."""
        self._undo.close()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, owner, name, owner.__dict__[name])
        setattr(owner, name, value)

    def _next(self, iterator: Any, own_next: Callable[[Any], Any]) -> Any:
        feed = iterator._sampler_iter
        if not isinstance(feed, Feed):
            return own_next(iterator)
        if self._outer:
            source = self._outer[-1]
            source.feed = feed
        else:
            source = feed.source = feed.source or Source(feed)
            self._listener.before_next(source)
            source.calls += 1
        try:
            batch = own_next(iterator)
        except StopIteration:
            if not self._outer:
                self._listener.ended(source)
            raise
        feed.delivered += 1
        self._listener.delivered(feed, batch)
        return batch

    def _watch_accelerate(self, module: ModuleType) -> None:
        for name in ("DataLoaderShard", "DataLoaderDispatcher"):
            kind = getattr(module, name, None)
            if kind is None or "__iter__" not in vars(kind):
                continue
            self._set(kind, "__iter__", self._around(vars(kind)["__iter__"]))

    def _around(self, own_iter: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        def following(loader: Any) -> Iterator[Any]:
            source = Source(None)
            batches = own_iter(loader)
            while True:
                self._listener.before_next(source)
                source.calls += 1
                self._outer.append(source)
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                finally:
                    self._outer.pop()
                yield batch
            self._listener.ended(source)

        return following
