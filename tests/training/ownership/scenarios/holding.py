"""What Python objects hold: containers, functions, classes and modules."""

import collections
import dataclasses
import enum
import functools
import gc
import itertools
import queue
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, TensorDataset

from tests.training.ownership.scenarios.made import inputs, net, tensor
from tests.training.ownership.scenarios.scenario import End, scenario

CACHE: dict[str, Tensor] = {}
LAST_BATCH: Tensor | None = None


@scenario("a dictionary that caches", holder="cache", mib=6)
def dictionary(end: End) -> None:
    model = net()
    cache = {f"item {number}": tensor() for number in range(3)}
    end(model, named=(cache,))


@scenario("a defaultdict of lists", holder="by_class", mib=8)
def defaultdict(end: End) -> None:
    by_class = collections.defaultdict(list)
    for number in range(4):
        by_class[number % 2].append(tensor())
    end(named=(by_class,))


@scenario("a deque without a maximum", holder="replay", mib=8)
def deque(end: End) -> None:
    replay: collections.deque[tuple[int, Tensor]] = collections.deque()
    for number in range(4):
        replay.append((number, tensor()))
    end(named=(replay,))


@scenario("containers in containers", holder="history", mib=2)
def nested(end: End) -> None:
    history = [{"epochs": ({"batches": [[tensor()]]},)}, None]
    end(named=(history,))


@scenario("keys of a dictionary and items of a set", holder="known", mib=4)
def keys(end: End) -> None:
    known = {"seen": {tensor()}, "names": {tensor(): "first"}}
    end(named=(known,))


@scenario("a function with an lru_cache", holder="embedding_of", mib=6)
def lru_cache(end: End) -> None:
    @functools.lru_cache
    def embedding_of(word: str) -> Tensor:
        return tensor()

    for word in ("a", "b", "c"):
        embedding_of(word)
    end(named=(embedding_of,))


class Registry:
    """A class that keeps what its objects make."""

    made: list[Tensor] = []  # noqa: RUF012  # the mistake that it is


@scenario("an attribute of a class", holder="Registry", kind="global", mib=4)
def class_attribute(end: End) -> None:
    Registry.made.extend((tensor(), tensor()))
    end(named=lambda: (Registry.made,))


@scenario("a dictionary that is an attribute of a module", holder="CACHE", kind="global", mib=4)
def module_dictionary(end: End) -> None:
    CACHE["weights"] = tensor(4)
    end(named=lambda: (CACHE,))


@scenario("a tensor that is a global variable", holder="LAST_BATCH", kind="global", mib=2)
def module_attribute(end: End) -> None:
    global LAST_BATCH
    LAST_BATCH = tensor()
    end(named=lambda: (LAST_BATCH,))


@scenario("a variable of a closure", holder="weights", mib=4)
def closure(end: End) -> None:
    def predictor() -> Callable[[Tensor], Tensor]:
        weights = tensor(4)
        return lambda x: x @ weights

    predict = predictor()
    end(named=(predict,))


@scenario("functools.partial", holder="predict", mib=4)
def partial(end: End) -> None:
    predict = functools.partial(max, tensor(2), key=tensor(2))
    end(named=(predict,))


@scenario("a default argument", holder="predict", mib=4)
def default_argument(end: End) -> None:
    def predict(x: Tensor, weights: Tensor = tensor(), *, bias: Tensor = tensor()) -> Tensor:  # noqa: B008  # the mistake
        return x * weights + bias

    end(named=(predict,))


class Tokenizer:
    """An object whose method outlives its name."""

    def __init__(self) -> None:
        self.table = tensor(4)

    def encode(self) -> None:
        """Use the table."""


@scenario("a bound method", holder="encode", mib=4)
def bound_method(end: End) -> None:
    encode = Tokenizer().encode
    end(named=(encode,))


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("__weakref__", "batch", "never_set")

    def __init__(self, batch: Tensor) -> None:
        self.batch = batch


@scenario("an object with __slots__", holder="batch", mib=2)
def slots(end: End) -> None:
    item = Slotted(tensor())
    end(named=(item,))


@dataclasses.dataclass
class Output:
    """As models return what they made."""

    logits: Tensor
    hidden: tuple[Tensor, ...]


@scenario("a dataclass", holder="logits", mib=2)
def dataclass(end: End) -> None:
    output = Output(logits=tensor(), hidden=(tensor(), tensor()))
    end(named=(output,))


Transition = namedtuple("Transition", ["state", "action"])  # as tutorials write it


@scenario("a namedtuple", holder="transition", mib=2)
def named_tuple(end: End) -> None:
    transition = Transition(tensor(), 3)
    end(named=(transition,))


class Hostile:
    """An object of which nothing may be asked: whatever runs of it allocates, or raises what nobody expects."""

    def __init__(self) -> None:
        self.kept = tensor()

    def _refuse(self, *_: object) -> NoReturn:
        CACHE["made by user code"] = tensor(16)
        raise KeyboardInterrupt("user code was run")

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __getattr__ = __dir__ = _refuse  # type: ignore[assignment]
    __eq__ = __hash__ = __call__ = __format__ = __sizeof__ = __getitem__ = __contains__ = _refuse  # type: ignore[assignment]
    big = loud = property(_refuse)


@scenario("an object whose __repr__ and properties allocate and raise", holder="kept", mib=2)
def hostile(end: End) -> None:
    item = Hostile()
    held = [item]
    end(held)
    assert "made by user code" not in CACHE


class Item:
    """A plain object."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.other: Any = None


@scenario("weak references in addition to the strong one", holder="'batch'", mib=2)
def weak(end: End) -> None:
    batch = tensor()
    watched = weakref.WeakValueDictionary({"watched": batch})
    told: list[str] = []
    reference = weakref.ref(batch, lambda _: told.append("gone"))
    end(named=(batch,))
    del watched, reference


@scenario("weakref.finalize, which holds its arguments", holder="finalize", kind="library", mib=2, stays=True)
def finalizer(end: End) -> None:
    item = Item()
    weakref.finalize(item, print, tensor())
    end(item)


@scenario("garbage: a cycle of references", holder="", kind="garbage", mib=4)
def cycle(end: End) -> None:
    gc.disable()  # as loops do that collect by hand
    item = Item(tensor(4))
    item.other = Item()
    item.other.other = item
    del item
    end()


@scenario("a queue.Queue", holder="waiting", mib=4)
def thread_queue(end: End) -> None:
    waiting: queue.Queue[Tensor] = queue.Queue()
    waiting.put(tensor())
    waiting.put(tensor())
    end(named=(waiting,))


@scenario("itertools.cycle, which keeps all it has seen", holder="batches", mib=6)
def endless(end: End) -> None:
    batches = itertools.cycle([tensor() for _ in range(3)])
    next(batches)
    end(named=(batches,))


@scenario("tee, zip and map over tensors", holder="pairs", mib=4)
def iterators(end: End) -> None:
    ours, theirs = itertools.tee(tensor() for _ in range(2))
    pairs = zip(theirs, map(Item, [1, 2]), strict=True)
    next(ours)
    next(ours)
    del ours, theirs
    end(named=(pairs,))


@scenario("a log record that a handler keeps", holder="buffer", kind="library", mib=2, stays=True)
def log_record(end: End) -> None:
    import logging.handlers

    handler = logging.handlers.MemoryHandler(1000)
    logger = logging.getLogger("scenario")
    logger.addHandler(handler)
    logger.propagate = False
    logger.warning("a batch of %d", 3, extra={"batch": tensor()})
    del handler, logger
    end()


@scenario("an array of objects of numpy's", holder="'table' -> ndarray", mib=4)
def array_of_objects(end: End) -> None:
    table = np.empty(3, dtype=object)
    table[0], table[1] = tensor(), {"scores": tensor()}
    end(table)


@scenario("an Enum of tensors", holder="'Weight' -> class Weight", mib=4)
def enumeration(end: End) -> None:
    class Weight(enum.Enum):
        EVEN = tensor(4)

    end(Weight)


@scenario("attributes of a class that was passed", holder="class Meter.history", mib=4)
def class_passed(end: End) -> None:
    class Meter:
        history: ClassVar[list[Tensor]] = []

    Meter.history.append(tensor(4))
    end(Meter(), named=(Meter,))


@scenario("weights of a loader's sampler", holder="'loader'", mib=4)
def sampler(end: End) -> None:
    class Weighted(Sampler[int]):
        def __init__(self) -> None:
            self.weights = tensor(4)

        def __iter__(self) -> Iterator[int]:
            return iter(range(2))

        def __len__(self) -> int:
            return 2

    loader = DataLoader(TensorDataset(tensor()), 2, sampler=Weighted())
    end(loader)


@scenario("a small view of a large tensor", holder="first", mib=8)
def view(end: End) -> None:
    first = tensor(8)[:1]
    end(named=(first,))


@scenario("one tensor under several names", holder="shared", mib=4)
def aliases(end: End) -> None:
    shared = tensor(4)
    again = [shared.view(-1, 2), shared.detach(), shared[10:20]]
    end(shared, named=(again,))


@scenario("an object that must stay while another is released", holder="wanted", mib=2, stays=True)
def wanted(end: End) -> None:
    model = net()
    wanted = inputs()
    end(model)
    assert wanted.untyped_storage().size() == 2 << 20, "what the user did not pass was taken"
