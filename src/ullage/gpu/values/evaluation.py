"""Run recorded operations on the CPU when a script needs a GPU value that depends on them."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import torch

from ullage.base.units import GIB, KIB, MIB
from ullage.gpu.values.content import (
    KEY,
    BlockContent,
    Certainty,
    Operand,
    OperatorCall,
    TensorView,
    UpdatedContent,
    WrittenView,
    extended,
)
from ullage.gpu.values.draw import draw, put_off, updated
from ullage.gpu.values.operator_plan import PRODUCTS, is_foreign, widened
from ullage.gpu.values.routing import Routing
from ullage.gpu.values.translation import bound, translation_of

FLOAT_BYTES: Final = 4 * MIB
"""The size in bytes up to which ullage keeps the values of a float tensor in host memory.

ullage computes a larger tensor only if the script reads a value that depends on it.
"""
WHOLE_BYTES: Final = 64 * MIB
"""The size in bytes up to which tensors of integers or booleans are kept on the host."""
# all results of an operation that runs on the host
_MADE_BYTES: Final = 256 * MIB
_DRAWN_BYTES: Final = 512 * MIB
# Computing this much in the middle of a run takes less than a minute.
_SHORTENED_BYTES: Final = 16 * GIB
# One n-th of the memory budget stays free for computations; this is n.
_LEFT: Final = 8
# Tensors of at most this size may use half of the free part of the budget. So sizes, flags and settings stay known when
# weights have filled the rest, for example the JSON that bitsandbytes reads back for each 4-bit weight.
_SMALL_BYTES: Final = 64 * KIB

_HOST_KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_OTHER_KEYS: Final = (
    torch._C._dispatch_keyset_full() - torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
) | torch._C.DispatchKeySet(torch._C.DispatchKey.Python).add(KEY)


Passing = dict[BlockContent, torch.UntypedStorage]
"""Maps GPU memory blocks to temporary copies in host memory, which ullage frees after one computation."""


class EvaluationError(Exception):
    """A GPU value cannot be computed on the host."""


class _HostRun(NamedTuple):
    places: Mapping[str, WrittenView]
    passing: Passing
    written: dict[str, torch.UntypedStorage]
    copies: bool  # A custom operator may write arguments that its schema marks as read-only.
    fills_holes: bool


class Evaluation:
    """Computes the contents of GPU memory on the host, within limits of size and memory."""

    def __init__(self, *, seed: int, routing: Routing, budget_bytes: int) -> None:
        self.seed = seed
        self.budget_bytes = budget_bytes
        self.kept_bytes = 0
        """The host memory that known GPU values use, in bytes."""
        self.passing_bytes = 0
        """The host memory of temporary results, in bytes. ullage frees these results after each computation."""
        self.peak_bytes = 0
        self.failures: dict[str, str] = {}
        """Maps each operation that failed on the host to the first line of its error."""
        self.routing = routing
        self._worked_bytes = 0
        self._left_bytes = _SHORTENED_BYTES

    # ---- kept values

    def bound_of(self, dtype: torch.dtype) -> int:
        """Return the size in bytes up to which tensors of this data type are kept on the host."""
        return FLOAT_BYTES if dtype.is_floating_point or dtype.is_complex else WHOLE_BYTES

    def has_room(self, size_bytes: int) -> bool:
        """Return whether the host memory budget has room for values of this size.

        A part of the budget stays free for computations.
        """
        left = self.budget_bytes // (2 * _LEFT if size_bytes <= _SMALL_BYTES else _LEFT)
        return self.kept_bytes + size_bytes <= self.budget_bytes - left

    def _has_room_to_work(self, size_bytes: int) -> bool:
        return self.kept_bytes + self.passing_bytes + size_bytes <= self.budget_bytes

    def keep(self, content: BlockContent, value: torch.UntypedStorage) -> None:
        """Keep the bytes of a GPU memory block on the host while the `BlockContent` object exists."""
        content.value = value
        content.call = None
        content.depth = 0
        size = value.nbytes() if content.holes is None else 2 * value.nbytes()
        self.kept_bytes += size
        self._note_peak()

        def gone() -> None:
            self.kept_bytes -= size

        weakref.finalize(content, gone).atexit = False

    def _note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.kept_bytes + self.passing_bytes)

    @contextmanager
    def _passing(self) -> Iterator[Passing]:
        passing: Passing = {}
        try:
            with on_the_host():
                yield passing
        finally:
            self.passing_bytes -= sum(each.nbytes() for each in passing.values())

    def _pass(self, content: BlockContent, found: torch.UntypedStorage, passing: Passing) -> None:
        if content in passing:
            return
        if not self._has_room_to_work(found.nbytes()):
            raise EvaluationError(f"the memory budget for values has no space for {found.nbytes()} more bytes")
        passing[content] = found
        self.passing_bytes += found.nbytes()
        self._note_peak()

    # ---- requested values

    def value_of(self, operand: Operand) -> torch.Tensor:
        """Return the values of a GPU tensor, as a host tensor that must not be written.

        Raises:
            EvaluationError: the values cannot be computed.
        """
        with self._passing() as passing:
            return operand.of(self._storage_of(operand.content, passing))

    def certainty_of(self, operand: Operand) -> Certainty:
        """Return how certain the values of a GPU tensor are, after `value_of` has returned them.

        They are unknown if they all depend on memory that the script has not written. The values of a tensor that the
        script has written in part are known: a script that uses the other part would fail on a real GPU, too.
        """
        holes = self.holes_in(operand)
        return Certainty.UNKNOWN if holes is not None and bool(holes.all()) else operand.content.certainty

    def holes_in(self, operand: Operand) -> torch.Tensor | None:
        """Return for each element of a GPU tensor whether it depends on memory that the script has not written.

        None: no element does.
        """
        holes = operand.content.holes
        if holes is None:
            return None
        with on_the_host():
            found = operand.of(holes.untyped_storage()).reshape(-1).view(torch.uint8)
            return found.view(-1, operand.dtype.itemsize).any(1)

    def results_of(self, call: OperatorCall) -> list[torch.Tensor]:
        """Run a recorded operation on the host and return its results, without storing them.

        Raises:
            EvaluationError: an argument cannot be computed.
            Exception: anything that the operator itself raises.
        """
        with self._passing() as passing:
            found = list(self._results_of(call, passing, {}).values())
            if self._has_holes(call):
                others = self._results_of(call, passing, {}, fills_holes=True).values()
                if not all(map(_are_equal, found, others)):
                    raise EvaluationError("the result depends on memory that the script has not written")
            return found

    def shorten(self, content: BlockContent) -> None:
        """Compute the bytes of a GPU memory block now, so that ullage can free the recorded inputs of the block.

        The bytes become unknown if they cannot be computed, or if the script has already shortened so many long chains
        of operations that more of them would make the run slow.
        """
        if self._left_bytes > 0 and self.has_room(content.bytes):
            before = self._worked_bytes
            with suppress(EvaluationError), self._passing() as passing:
                self._storage_of(content, passing)
            self._left_bytes -= self._worked_bytes - before
            if self._left_bytes <= 0:
                self.failures["long chains of operations"] = (
                    f"more than {_SHORTENED_BYTES // GIB} GiB of intermediate results; later ones are unknown"
                )
        if content.value is None:
            self._give_up_content(content)

    def _storage_of(self, content: BlockContent, passing: Passing) -> torch.UntypedStorage:
        if (found := _found(content, passing)) is not None:
            return found
        # Compute the sources in the order of the script, and in a loop, because chains are longer than Python's stack.
        # In this order, an intermediate result is needed for about as long as the script itself keeps it.
        needed, waiting = {content}, [content]
        while waiting:
            new = [
                each for each in self._sources(waiting.pop()) if each not in needed and _found(each, passing) is None
            ]
            needed.update(new)
            waiting += new
        order = sorted(needed, key=lambda each: (each.serial, isinstance(each, UpdatedContent)), reverse=True)
        del needed, new  # so that memory is free as soon as the next operation has used it
        while order:
            each = order.pop()
            if each is not content and _found(each, passing) is None:
                with suppress(EvaluationError):  # The error is raised again by the content that needs this one.
                    self._made(each, passing)
            del each
        return self._made(content, passing)

    def _sources(self, content: BlockContent) -> list[BlockContent]:
        if isinstance(content, UpdatedContent):
            return [content.origin]
        call = content.call
        if call is None or not self._can_run(call):
            return []
        bases = [target.base for target in call.targets if isinstance(target.place, str) and target.base is not None]
        return [*(operand.content for operand in operands_in(call)), *bases]

    def _made(self, content: BlockContent, passing: Passing) -> torch.UntypedStorage:
        if (found := _found(content, passing)) is not None:
            return found
        if isinstance(content, UpdatedContent):
            moved = updated(content, self._storage_of(content.origin, passing), self.seed)
            self._settle(content, moved, passing)
            return moved
        call = content.call
        if call is not None and self._can_run(call):
            self._run(call, passing)
            if (found := _found(content, passing)) is not None:
                return found
        if content.bytes > _DRAWN_BYTES or not self._has_room_to_work(content.bytes):
            raise EvaluationError(f"a tensor of {content.bytes} bytes is too large to be computed")
        drawn = draw(content, self.seed)
        if content.is_new:
            content.certainty = Certainty.KNOWN
            content.holes = torch.ones(content.bytes, dtype=torch.bool, device="cpu")
        else:
            content.certainty = max(content.certainty, Certainty.DRAWN if content.is_float else Certainty.UNKNOWN)
        self._settle(content, drawn, passing)
        return drawn

    def _settle(self, content: BlockContent, found: torch.UntypedStorage, passing: Passing) -> None:
        size = found.nbytes()
        self._worked_bytes += size
        if size <= self.bound_of(content.dtype) and self.has_room(size) and self._has_room_to_work(size):
            self.keep(content, found)
        else:
            self._pass(content, found, passing)

    # Custom operators of packages do not run on large floats, because quantising gigabytes of weights would take
    # minutes.
    def _can_run(self, call: OperatorCall) -> bool:
        made = [content for target in call.targets if (content := target.content()) is not None]
        made_bytes = sum(content.bytes for content in made)
        if made_bytes > _MADE_BYTES or not self._has_room_to_work(made_bytes):
            return False
        makes_floats = all(content.is_float for content in made)
        if not makes_floats and not is_foreign(call.operator._schema.name):
            return True
        return all(
            not (operand.content.is_float and operand.content.value is None and operand.content.bytes > FLOAT_BYTES)
            for operand in operands_in(call)
        )

    # ---- running operations

    def _run(self, call: OperatorCall, passing: Passing) -> None:
        written: dict[str, torch.UntypedStorage] = {}
        try:
            results = self._results_of(call, passing, written)
            self._worked_bytes += sum(operand.bytes for operand in operands_in(call))
            self._spread(call)
            others: dict[str, torch.UntypedStorage] = {}
            if has_holes := self._has_holes(call):
                other_results = self._results_of(call, passing, others, fills_holes=True)
            for target in call.targets:
                content = target.content()
                if content is None or content.value is not None:
                    continue
                found = _storage_at(target, results, written, content.bytes)
                if has_holes:
                    content.holes = different(found, _storage_at(target, other_results, others, content.bytes))
                self._settle(content, found, passing)
        except EvaluationError:
            self._give_up(call)
        except Exception as error:  # An operator may raise anything; the run continues without its value.
            name = str(call.operator)
            self.failures.setdefault(name, str(error).partition("\n")[0][:200])
            self._give_up(call)

    @staticmethod
    def _has_holes(call: OperatorCall) -> bool:
        return any(operand.content.holes is not None for operand in operands_in(call)) or any(
            target.base is not None and target.base.holes is not None for target in call.targets
        )

    def _spread(self, call: OperatorCall) -> None:
        certainty = certainty_of(call)
        for target in call.targets:
            content = target.content()
            if content is not None:
                base = target.base.certainty if target.base is not None and target.base_counts else Certainty.KNOWN
                content.certainty = max(content.certainty, certainty, base)

    def _give_up(self, call: OperatorCall) -> None:
        for target in call.targets:
            content = target.content()
            if content is not None and content.value is None:
                self._give_up_content(content)

    @staticmethod
    def _give_up_content(content: BlockContent) -> None:
        content.call = None
        content.depth = 0
        content.certainty = Certainty.DRAWN if content.is_float else Certainty.UNKNOWN

    # A result does not depend on unwritten memory if it is the same whatever the memory holds: zeros, or other bytes if
    # `fills_holes`.
    def _results_of(
        self,
        call: OperatorCall,
        passing: Passing,
        written: dict[str, torch.UntypedStorage],
        *,
        fills_holes: bool = False,
    ) -> Mapping[int, Any]:
        places = {str(target.place): target for target in call.targets if isinstance(target.place, str)}
        run = _HostRun(places, passing, written, is_foreign(call.operator._schema.name), fills_holes)
        arguments = [self._host_argument(each, str(number), run) for number, each in enumerate(call.arguments)]
        keywords = {name: self._host_argument(each, name, run) for name, each in call.keywords.items()}
        if "device" in keywords and keywords["device"] is not None:
            keywords["device"] = torch.device("cpu")
        if "generator" in keywords:
            keywords["generator"] = self._generator_of(call)
        if "pin_memory" in keywords:
            keywords["pin_memory"] = None
        if call.is_random and takes_generator(call.operator):
            keywords["generator"] = self._generator_of(call)
        with self._random_numbers(call):
            result = self.routing.results(call, arguments, keywords)
            if result is None:
                result = _computed(call.operator, arguments, keywords)
                if call.is_random and not isinstance(result, Mapping):
                    put_off(call, result, self.seed)
        if isinstance(result, Mapping):
            return result
        return dict(enumerate(result if isinstance(result, list | tuple) else (result,)))

    def _host_argument(self, argument: Any, place: str, run: "_HostRun") -> Any:
        if isinstance(argument, list | tuple):
            return [self._host_argument(each, f"{place}.{number}", run) for number, each in enumerate(argument)]
        if place in run.places:
            return self._writable(run.places[place], run)
        if isinstance(argument, Operand):
            storage = self._storage_of(argument.content, run.passing)
            value = argument.of(_filled(argument.content, storage) if run.fills_holes else storage)
            return value.clone() if run.copies else value
        return argument

    def _writable(self, target: WrittenView, run: "_HostRun") -> torch.Tensor:
        content, base = target.content(), target.base
        size = max(content.bytes if content is not None else 0, target.view.end_bytes)
        if base is None:
            storage = torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
        else:
            before = self._storage_of(base, run.passing)
            storage = extended(_filled(base, before) if run.fills_holes else before, max(size, base.bytes))
        run.written[str(target.place)] = storage
        return target.view.of(storage)

    def _seed_of(self, call: OperatorCall) -> int:
        first = next((content.serial for target in call.targets if (content := target.content()) is not None), 0)
        return (self.seed * 7_368_787 + first) % (1 << 62)

    # The script's threads may use the default generator during the call.
    def _generator_of(self, call: OperatorCall) -> torch.Generator | None:
        return torch.Generator().manual_seed(self._seed_of(call)) if call.is_random else None

    @contextmanager
    def _random_numbers(self, call: OperatorCall) -> Iterator[None]:
        if not call.is_random or takes_generator(call.operator):
            yield
            return
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(self._seed_of(call))
        try:
            yield
        finally:
            generator.set_state(state)


def _found(content: BlockContent, passing: Passing) -> torch.UntypedStorage | None:
    if content.value is not None:
        return content.value
    if not content.bytes:  # An empty content is always known.
        return torch.UntypedStorage(0)
    return passing.get(content)


# Bytes that are neither small nor equal to each other, with both signs. A boolean is 0 or 1.
def _filled(content: BlockContent, storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if content.holes is None:
        return storage
    whole = _bytes_of(extended(storage, storage.nbytes()))
    if content.dtype == torch.bool:
        noise = torch.ones_like(whole)
    else:
        each = content.dtype.itemsize
        noise = torch.arange(len(whole), dtype=torch.int64, device="cpu")
        noise = (noise * 37 + noise.div(each, rounding_mode="floor").remainder(2) * 128).remainder(256).byte()
    whole[: len(content.holes)][content.holes] = noise[: len(content.holes)][content.holes]
    return whole.untyped_storage()


def _are_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    return one.size() == other.size() and bool(
        torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )


def different(one: torch.UntypedStorage, other: torch.UntypedStorage) -> torch.Tensor | None:
    """Return for each byte whether two storages differ in it, or None if they do not differ.

    Raises:
        EvaluationError: the storages have different sizes.
    """
    if one.nbytes() != other.nbytes():
        raise EvaluationError("the size of the result depends on memory that the script has not written")
    found = _bytes_of(one) != _bytes_of(other)
    return found if bool(found.any()) else None


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _storage_at(
    target: WrittenView, results: Mapping[int, Any], written: Mapping[str, torch.UntypedStorage], size_bytes: int
) -> torch.UntypedStorage:
    if isinstance(target.place, str):
        return written[target.place]
    return _laid_out(results[target.place], target.view, size_bytes)


def _computed(operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    narrow = None
    if operator._schema.name in PRODUCTS:
        arguments, narrow = widened(arguments)
    rule = translation_of(operator)
    result: Any = operator(*arguments, **keywords) if rule is None else rule(bound(operator, arguments, keywords))
    return result if narrow is None else result.to(narrow)


def takes_generator(operator: Any) -> bool:
    """Return whether an operator has the argument `generator`."""
    return any(each.name == "generator" for each in operator._schema.arguments)


def certainty_of(call: OperatorCall) -> Certainty:
    """Return how certain the result of a recorded operation is: as certain as its least certain tensor argument."""
    return max((operand.content.certainty for operand in operands_in(call)), default=Certainty.KNOWN)


def operands_in(call: OperatorCall) -> Iterator[Operand]:
    """Yield the GPU tensors in the arguments of a recorded operation."""
    for argument in (*call.arguments, *call.keywords.values()):
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, list | tuple):
            for each in argument:
                if isinstance(each, Operand):
                    yield each


@contextmanager
def on_the_host() -> Iterator[None]:
    """Run operators on the host without gradients, autocast, dispatch modes and interception."""
    with torch._C._ForceDispatchKeyGuard(_HOST_KEYS, _OTHER_KEYS):
        yield


def _laid_out(result: torch.Tensor, view: TensorView, size_bytes: int) -> torch.UntypedStorage:
    if result.size() != view.size:
        raise EvaluationError(f"the result has the shape {tuple(result.size())}; expected {tuple(view.size)}")
    storage = result.untyped_storage()
    if (
        result.dtype == view.dtype
        and result.stride() == view.stride
        and result.storage_offset() == view.offset
        and storage.nbytes() == size_bytes
        and not isinstance(result, torch.nn.Parameter)
    ):
        return storage
    whole = torch.zeros(size_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
    view.of(whole).copy_(result)
    return whole
