"""Run every GPU operator on the host, too, so that all tensor values are computed.

The emulated driver allocates host memory at the GPU's addresses (`library.hold_values`). So a GPU tensor is also a host
tensor, and views and in-place operators need no special rules. The GPU operator runs first, with kernels that do
nothing, so that the allocator sees PyTorch's own requests. Then the operator runs on the host.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, Final

import torch

from ullage.gpu.values.answers import COUNTED
from ullage.gpu.values.dispatch import PYTHON, Invocation, Watch, tensors_in
from ullage.gpu.values.evaluation import on_the_host, takes_generator
from ullage.gpu.values.faults import Faults
from ullage.gpu.values.operator_plan import OperatorPlan
from ullage.gpu.values.random_numbers import RandomNumbers
from ullage.gpu.values.reads import Reads
from ullage.gpu.values.sparse import computed, is_counted, made_of, parts_of
from ullage.gpu.values.translation import WITHOUT_VALUES, Results, bound, translation_of

_HOST: Final = torch.device("cpu")
_COUNTED: Final = COUNTED | {"aten::_coalesce"}
# These operators contain another one that reads the count: `nms` (torchvision 0.26) contains `masked_select`, and `mm`
# of sparse matrices contains `addmm`.
_COUNTED_WITHIN: Final = frozenset(("torchvision::nms", "aten::mm", "aten::add"))
# The CPU has no kernels for the CUDA-only parts of these operators, but has a kernel for the whole.
_WHOLE: Final = frozenset(("aten::convolution", "aten::convolution_backward", "aten::_convolution"))
# Their return value is read from GPU memory that only their own kernels write.
_TRUTHS: Final = frozenset(("aten::equal",))
_HOST_KERNELS: Final = (
    *("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd"),
    *("SparseCPU", "SparseCsrCPU", "QuantizedCPU"),
)
_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_FAILURES: Final = (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError)
# Parts of CPU error messages: a real GPU would report a failed assertion.
_WRONG: Final = ("out of range", "out of bounds", "assert", "Assertion", "Expected Tensor with single nonzero value")


class _Rule:
    __slots__ = ("has_generator", "is_counted", "plan", "run", "translation")

    def __init__(self, operator: Any) -> None:
        self.plan = OperatorPlan(operator)
        self.translation = translation_of(operator)
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        full = operator.name()
        self.run = self.plan.name not in WITHOUT_VALUES and (
            self.translation is not None or any(has(full, key) for key in _HOST_KERNELS)
        )
        self.is_counted = self.plan.name in _COUNTED
        self.has_generator = takes_generator(operator)

    @property
    def passes(self) -> bool:
        return self.plan.is_composite and self.plan.name not in _WHOLE


_rule_of: Final = cache(_Rule)


# The memory that an operator writes is copied before operators that run inside it write to it.
class _OperatorFrame:
    __slots__ = ("before", "is_computed")

    def __init__(self, written: Sequence[torch.Tensor], *, is_computed: bool) -> None:
        self.is_computed = is_computed
        self.before: dict[tuple[int, int], torch.Tensor | None] = {
            (storage.data_ptr(), storage.nbytes()): None for each in written for storage in (each.untyped_storage(),)
        }

    def keep(self, written: Sequence[torch.Tensor]) -> None:
        for each in written:
            storage = each.untyped_storage()
            key = (storage.data_ptr(), storage.nbytes())
            if key in self.before and self.before[key] is None:
                self.before[key] = _bytes_at(*key).clone()

    def restore(self) -> None:
        for (address, size), kept in self.before.items():
            if kept is not None:
                _bytes_at(address, size).copy_(kept)


class Computation(Watch):
    """Intercepts all GPU operators and computes their results on the host."""

    def __init__(
        self,
        faults: Faults,
        reads: Reads,
        failures: dict[str, str],
        answer: Callable[[int | None], None],
        leave_memory: Callable[[bool], None],
    ) -> None:
        super().__init__(faults, everything=True)
        self._reads = reads
        self._failures = failures
        self._answer = answer
        self._leave_memory = leave_memory
        self._here = threading.local()
        self.random_numbers = RandomNumbers()
        self._recorded: list[Callable[[], None]] | None = None

    # ---- CUDA graphs: captured operations run at each replay

    def begin_capture(self) -> None:
        """Start to record the operations of a CUDA graph."""
        self._recorded = []

    def end_capture(self) -> list[Callable[[], None]]:
        """Return the operations that were recorded for a CUDA graph."""
        recorded, self._recorded = self._recorded or [], None
        return recorded

    def before_replay(self) -> Any:
        """Return the position of the GPU's random generator before a CUDA graph runs."""
        return self.random_numbers.position(None, torch.cuda.current_device())

    def after_replay(self, recorded: Sequence[Callable[[], None]], position: Any) -> None:
        """Run the operations of a CUDA graph on the host. `before_replay` has returned the position."""
        device = torch.cuda.current_device()
        numbers = self.random_numbers
        host, _ = numbers.state(None, device, position)
        with on_the_host(), _as_default(host):
            for each in recorded:
                each()
        numbers.settle(None, device, host)

    # ---- one operator

    def handle(self, op: Invocation) -> Any:
        arguments, keywords = op.arguments, op.keywords
        rule = _rule_of(op.operator)
        op.plan = rule.plan
        if self.has_ended or op.keyset.has(PYTHON) or rule.passes or getattr(self._here, "is_silent", False):
            return op.run()
        is_on_card = any(each.is_cuda for each in tensors_in((*arguments, *keywords.values())))
        device = keywords.get("device")
        if not is_on_card and (device is None or torch.device(device).type != "cuda"):
            return op.run()
        return self._run(rule, op)

    def run_plainly(self, op: Invocation) -> None:
        op.run_plainly()

    def lose(self, op: Invocation) -> None:
        self._failures.setdefault(str(op.operator), "ullage failed; see the other notes")

    def _run(self, rule: _Rule, op: Invocation) -> Any:
        plan = rule.plan
        if torch._C._cuda_isCurrentStreamCapturing():
            return self._record(rule, op)
        written = [each for each in tensors_in(op.written()) if each.is_cuda and _has_storage(each)]
        frames = self._frames
        count = getattr(self._here, "count", None)
        if count is not None:
            # The operator reads the count itself, or is nested in the operator that counts.
            if plan.name == "aten::_local_scalar_dense" or self._here.counting in _COUNTED_WITHIN:
                return op.run()
            # The answer belongs to the outer operator's reads, not to this operator's.
            self._here.count = None
            self._answer(None)
            try:
                return self._run(rule, op)
            finally:
                self._here.count = count
                self._answer(count)
        for frame in frames:
            frame.keep(written)
        draws = _Draws(self.random_numbers, rule, op) if plan.is_random else None
        frame = _OperatorFrame(written, is_computed=bool(rule.run))
        frames.append(frame)
        try:
            with self._reads.answered():
                if rule.is_counted or is_counted(plan.name, op.arguments):
                    result = self._run_counted(op)
                else:
                    result = self._run_on_card(op)
        finally:
            frames.pop()
        if result is not None and not plan.written and not any(True for _ in tensors_in((result,))):
            if plan.name in _TRUTHS:
                with on_the_host():
                    return self._results(rule, _on_the_host(op))
            return result  # a number, which was read from memory that holds it
        if not rule.run:
            if draws is not None:
                draws.settle()
            if plan.name not in WITHOUT_VALUES and not frames and not plan.is_collective:
                self._failures.setdefault(str(op.operator), "the CPU does not have this operator")
            return result
        try:
            with on_the_host():
                frame.restore()
                with draws or nullcontext():
                    _write(result, self._results(rule, _on_the_host(op)), op)
        except _FAILURES as error:
            self._fail(op.operator, error, is_within=any(each.is_computed for each in frames))
        return result

    @property
    def _frames(self) -> list[_OperatorFrame]:
        here = self._here
        if not hasattr(here, "frames"):
            here.frames = []
        frames: list[_OperatorFrame] = here.frames
        return frames

    def _run_on_card(self, op: Invocation) -> Any:
        self._leave_memory(True)  # noqa: FBT003  # by place
        try:
            return op.run()
        finally:
            self._leave_memory(len(self._frames) > 1)

    def _run_counted(self, op: Invocation) -> Any:
        here = self._here
        count = 0
        with suppress(RuntimeError, NotImplementedError, IndexError, ValueError), on_the_host():
            count = _count(op.plan, _on_the_host(op))
        outer, here.count = getattr(here, "count", None), count
        here.counting = op.plan.name
        self._answer(count)
        try:
            return self._run_on_card(op)
        finally:
            here.count = outer
            self._answer(outer)

    def _results(self, rule: _Rule, host: Invocation) -> Results | None:
        try:
            return _computed(rule, host)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error):
                raise
        # The CPU has some operators for wider number types only.
        keywords = {name: _widened(each) for name, each in host.keywords.items()}
        wide = Invocation(None, host.operator, [_widened(each) for each in host.arguments], keywords, rule.plan)
        results = _computed(rule, wide)
        for before, after in zip(tensors_in(host.written()), tensors_in(wide.written()), strict=True):
            if after is not before:
                before.copy_(after)
        return results

    def _record(self, rule: _Rule, op: Invocation) -> Any:
        here = self._here
        outer = getattr(here, "is_silent", False)
        here.is_silent = rule.run
        try:
            with self._reads.answered():
                result = self._run_on_card(op)
        finally:
            here.is_silent = outer
        recorded = self._recorded
        if not rule.run or recorded is None:
            return result
        with on_the_host():  # These are views of addresses and do not keep the graph's memory alive.
            host, places = _on_the_host(op), _on_host(result)

        def again() -> None:
            try:
                _write(places, self._results(rule, host), host)
            except _FAILURES as error:
                self._fail(host.operator, error, is_within=False)

        recorded.append(again)
        return result

    def _fail(self, operator: Any, error: Exception, *, is_within: bool) -> None:
        if is_within:  # It may have read memory that a kernel of the outer operator should have written.
            return
        text = str(error).partition("\n")[0][:200]
        if isinstance(error, IndexError) or any(each in text for each in _WRONG):
            self.faults.give_to_script(error)
            raise error
        self._failures.setdefault(str(operator), text)


class _Draws:
    def __init__(self, numbers: RandomNumbers, rule: _Rule, op: Invocation) -> None:
        self._numbers = numbers
        self._generator = op.keywords.get("generator") if rule.has_generator else None
        self._device = _device_of(op)
        position = numbers.position(self._generator, self._device)
        self._host, self._state = numbers.state(self._generator, self._device, position)
        self._scope: Any = None

    def __enter__(self) -> None:
        # Nested operators may already have used random numbers.
        self._host.set_state(self._state)
        self._scope = _as_default(self._host)
        self._scope.__enter__()

    def __exit__(self, *_: object) -> None:
        self._scope.__exit__(None, None, None)
        self.settle()

    def settle(self) -> None:
        self._numbers.settle(self._generator, self._device, self._host)


@contextmanager
def _as_default(host: Any) -> Iterator[None]:
    default = torch.default_generator
    if host is default:
        yield
        return
    before = default.get_state()
    default.set_state(host.get_state())
    try:
        yield
    finally:
        host.set_state(default.get_state())
        default.set_state(before)


def _device_of(op: Invocation) -> int:
    for each in tensors_in((*op.arguments, *op.keywords.values())):
        if each.is_cuda:
            return each.get_device()
    device = op.keywords.get("device")
    index = torch.device(device).index if device is not None else None
    return torch.cuda.current_device() if index is None else index


def _computed(rule: _Rule, host: Invocation) -> Results | None:
    if is_counted(rule.plan.name, host.arguments):
        return computed(rule.plan.name, host.arguments)
    if rule.translation is not None:
        return rule.translation(bound(host.operator, host.arguments, host.keywords))
    function = rule.plan.for_host(host.operator, host.arguments)
    found: Results | None = function(*host.arguments, **host.keywords)
    return found


def _count(plan: OperatorPlan, host: Invocation) -> int:
    if is_counted(plan.name, host.arguments):
        return computed(plan.name, host.arguments)._nnz()
    if plan.name == "aten::nonzero":
        return int(torch.count_nonzero(host.arguments[0]))
    found = host.operator(*host.arguments, **host.keywords)
    first = found[0] if isinstance(found, tuple | list) else found
    by_dimension = plan.name in ("aten::unique_dim", "aten::unique_dim_consecutive")
    return int(first.shape[int(host.arguments[1]) if by_dimension else 0])


# ---- GPU tensors as host tensors


def _has_storage(tensor: torch.Tensor) -> bool:
    return bool(tensor.layout == torch.strided and not tensor.is_nested)


def _bytes_at(address: int, size_bytes: int) -> torch.Tensor:
    if not address or not size_bytes:
        return torch.empty(0, dtype=torch.uint8, device=_HOST)
    storage = torch._C._construct_storage_from_data_pointer(address, _HOST, size_bytes)
    return torch.empty(0, dtype=torch.uint8, device=_HOST).set_(storage, 0, (size_bytes,), (1,))


def _on_host(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return _tensor_on_host(argument) if argument.is_cuda else argument
    if isinstance(argument, list | tuple):
        return [_on_host(each) for each in argument]
    if isinstance(argument, torch.device):
        return _HOST
    return argument


def _tensor_on_host(tensor: torch.Tensor) -> torch.Tensor:
    if parts := parts_of(tensor):
        return made_of([_tensor_on_host(each) for each in parts], tensor)
    if not _has_storage(tensor):
        raise NotImplementedError(f"a tensor with the layout {tensor.layout} is not supported")
    storage = tensor.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if not address or not size:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_HOST)
    own = torch._C._construct_storage_from_data_pointer(address, _HOST, size)
    found = torch.empty(0, dtype=tensor.dtype, device=_HOST)
    found.set_(own, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        found = found.conj()
    return torch._neg_view(found) if tensor.is_neg() else found


def _on_the_host(op: Invocation) -> Invocation:
    named = {name: _on_host(each) for name, each in op.keywords.items()}
    if named.get("device") is not None:
        named["device"] = _HOST
    named |= dict.fromkeys(named.keys() & {"generator", "pin_memory"})
    return Invocation(None, op.operator, [_on_host(each) for each in op.arguments], named, op.plan)


def _widened(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.to(_WIDER[argument.dtype]) if argument.dtype in _WIDER else argument
    if isinstance(argument, list):
        return [_widened(each) for each in argument]
    if isinstance(argument, torch.dtype):
        return _WIDER.get(argument, argument)
    return argument


def _write(result: Any, results: Any, op: Invocation) -> None:
    own = {id(each) for each in tensors_in(op.written())}

    def write(place: Any, value: Any) -> None:
        if isinstance(place, list | tuple):
            if isinstance(value, torch.Tensor):
                value = [value]
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value or ())
            for number, each in pairs:
                if number < len(place):
                    write(place[number], each)
        elif isinstance(place, torch.Tensor) and isinstance(value, torch.Tensor) and id(place) not in own:
            _fill(place, value)

    write(result if isinstance(result, list | tuple) else [result], results)


def _fill(place: torch.Tensor, value: torch.Tensor) -> None:
    if place.layout == torch.strided:
        _copy(_on_host(place), value)
        return
    if place._nnz() != value._nnz():  # One of NVIDIA's libraries has counted.
        raise RuntimeError(f"the result has {value._nnz()} elements; expected {place._nnz()}")
    for part, each in zip(parts_of(place), parts_of(value), strict=True):
        _copy(_on_host(part), each)


def _copy(place: torch.Tensor, value: torch.Tensor) -> None:
    if place.size() != value.size():
        if place.numel() < value.numel():
            if value.numel() == 0 or place.numel() == 0:
                return
            raise RuntimeError(f"the result has the shape {tuple(value.size())}; expected {tuple(place.size())}")
        # The result is padded by a library, or is opaque state that only has to be recognised later.
        flat = torch.as_strided(place, (value.numel(),), (1,), place.storage_offset())
        if place.dtype == torch.uint8:
            flat = torch.as_strided(place, (value.nbytes,), (1,), place.storage_offset()).view(value.dtype)
        place.zero_()
        flat.copy_(value.flatten()) if place.dtype == torch.uint8 or value.dim() == 0 else _into(place, value)
        return
    if place.data_ptr() != value.data_ptr() or place.stride() != value.stride():
        place.copy_(value)


def _into(place: torch.Tensor, value: torch.Tensor) -> None:
    part = place
    for dimension, size in enumerate(value.size()):
        part = part.narrow(dimension, 0, size)
    part.copy_(value)
