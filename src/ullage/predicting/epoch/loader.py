"""Hook into torch's DataLoader to choose the batches that it returns, and to observe every `next()`."""

# The DataLoader itself fetches, collates and pins, also in its workers. Only its sampler is replaced: it returns the
# same batches as the script's sampler, until a plan chooses the next batch. Accelerate's loaders wrap torch's loader,
# read one batch ahead, and move the batch to the GPU. A step therefore begins when Accelerate's loader is called.

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
    """One pass over a data loader, with the batches that it returns."""

    loader: Any
    own: Iterator[Any]
    """An iterator over the batches that the script's sampler has not returned yet."""
    _listener: "LoaderListener"
    handed: list[int] = field(default_factory=list)
    """The position in the epoch of each returned batch, or -1 for batches outside the epoch."""
    given: list[Any] = field(default_factory=list)
    """The batches that were returned before ullage began to choose batches."""
    delivered: int = 0
    source: "Source | None" = None
    """The iterator that the training loop calls, or None if a wrapper of the data loader is called instead."""
    choose: Callable[[], Any] | None = None
    """A function that returns the next batch to run. If None, the script's sampler chooses."""

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
    """The iterator from which the training loop gets its batches: torch's data loader, or a wrapper of it."""

    feed: Feed | None
    calls: int = 0
    """The number of times that the training loop has called `next` on this iterator."""
    backward_passes: int = 0
    """The number of backward passes before the last call of `next` on this iterator."""


class LoaderListener(Protocol):
    """The interface of objects that are called at the events of data loaders."""

    def before_handing_out(self, feed: Feed) -> None:
        """Called before the next batch is chosen."""

    def before_next(self, source: Source) -> None:
        """Called when the training loop requests a batch from a data loader."""

    def delivered(self, feed: Feed, batch: Any) -> None:
        """Called after a batch was fetched."""

    def ended(self, source: Source) -> None:
        """Called when the data loader has no batch left."""


class _Sampler:
    def __init__(self, loader: Any, own: Any, listener: LoaderListener) -> None:
        self._loader, self._own, self._listener = loader, own, listener

    def __iter__(self) -> Feed:
        return Feed(self._loader, iter(self._own), self._listener)

    def __len__(self) -> int:
        return len(self._own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class LoaderHooks:
    """Hooks on data loaders. `install` adds them, and `remove` removes them."""

    def __init__(self, listener: LoaderListener) -> None:
        self._listener = listener
        self._undo = ExitStack()
        # The wrappers of torch's data loader that are executing `next()` now.
        self._outer: list[Source] = []

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
        """Remove the hooks."""
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
