"""Intercept every operator with kernels at a dispatch key below autograd.

After the interception, an operator runs as usual. So the allocator sees PyTorch's own requests, byte for byte. A
`TorchDispatchMode` would not work: under a mode, autograd treats tensors as subclasses and no longer accumulates
gradients in place (`isTensorSubclassLike` in ATen/TensorSubclassLikeUtils.h).
"""

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeGuard

import torch
from torch.utils._python_dispatch import _pop_mode_temporarily

from ullage.gpu.values.content import INTERCEPTION_KEY, KEY
from ullage.gpu.values.faults import Faults, deeper_stack
from ullage.gpu.values.operator_plan import (
    CLOSED,
    NUMBERS,
    OperatorPlan,
    argument_at,
    composites,
    is_composite,
    overload_of,
    passes,
    plan_of,
)

_OWN_FILES: Final = (str(Path(__file__).parent), torch._ops.__file__)
_BELOW: Final = torch._C._dispatch_keyset_full_after(KEY)
_TRACERS: Final = tuple(torch._C._TorchDispatchModeKey.__members__.values())
# c10::impl::tls_is_dispatch_key_included(c10::DispatchKey)
_IS_INCLUDED: Final = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE"
ONLY: Final = torch._C.DispatchKeySet(KEY)
"""A set of dispatch keys with only ullage's key."""
PYTHON: Final = torch._C.DispatchKey.Python
"""The dispatch key of Python tensor subclasses and dispatch modes."""
_BEFORE_PYTHON: Final = (
    (torch._C._dispatch_keyset_full() - torch._C._dispatch_keyset_full_after(PYTHON)).remove(PYTHON).remove(KEY)
)


# For more operators than this, one query for all composite operators is faster than a query for each.
_MANY: Final = 400


Listener = Callable[[Any, Sequence[Any], Mapping[str, Any]], Callable[[Any], None]]
"""A function that gets an operator and its arguments, and returns a function that gets the operator's result."""


class Watch(ABC):
    """The base class for interception.

    After `install`, it intercepts all PyTorch operators in each thread that has called `include`.
    """

    def __init__(self, faults: Faults, *, everything: bool) -> None:
        self.faults = faults
        self._everything = everything
        self._libraries: dict[str, Any] = {}  # Deleting a library removes its kernels.
        self._registered: set[str] = set()
        self.has_ended = False
        """Whether interception has ended."""
        self.listener: Listener | None = None
        """A function that is called before each operator that uses GPU memory. Set it before `install`."""

    @abstractmethod
    def handle(self, op: "Invocation") -> Any:
        """Run an intercepted operator with `Invocation.run`, and return its result."""

    @abstractmethod
    def run_plainly(self, op: "Invocation") -> None:
        """Run an operator after an error of ullage."""

    @abstractmethod
    def lose(self, op: "Invocation") -> None:
        """Mark everything that an operator has written or returned as unknown."""

    def _go_on(self, op: "Invocation", error: Exception) -> Any:
        self.faults.note(str(op.operator), error)
        if not op.has_run:
            self.run_plainly(op)
        try:
            self.lose(op)
        except Exception as another:
            self.faults.note(str(op.operator), another)
            self.has_ended = True  # Nothing that was recorded before can be relied on.
        return op.result

    def prepare(self) -> None:
        """Register a kernel for ullage's dispatch key that passes every operator to the next dispatch key.

        Threads can then include the dispatch key before ullage intercepts operators.
        """
        passing = torch.library.Library("_", "IMPL")
        passing.fallback(torch.library.fallthrough_kernel, INTERCEPTION_KEY)
        self._libraries["_"] = passing
        _pass_by_higher_order_operators()

    def install(self) -> None:
        """Register a kernel for every operator. PyTorch calls it only in threads that include ullage's dispatch key.

        If the arguments contain a Tensor subclass, or the script uses a dispatch mode, PyTorch finds only kernels
        registered for the operator itself. The fallback kernel is for operators that are defined later.
        """
        self.see_new_operators()
        self._follow_definitions()
        del self._libraries["_"]  # By now every existing operator has its own kernel.
        whole = torch.library.Library("_", "IMPL")
        whole.fallback(self._fallback_of(self._told(self.handle)), INTERCEPTION_KEY, with_keyset=True)
        self._libraries["_"] = whole

    def see_new_operators(self, *names: str) -> None:
        """Intercept the named operators or, if none are named, all operators.

        Operators that are intercepted already are skipped.
        """
        new = [name for name in names or torch._C._dispatch_get_all_op_names() if name not in self._registered]
        made_of_others = composites() if len(new) > _MANY else {name for name in new if is_composite(name)}
        for name in new:
            self._registered.add(name)
            namespace, _, short = name.partition("::")
            library: Any = self._libraries.get(namespace)
            if library is None:
                library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
            kernel = self._kernel_for(name, made_of_others)
            library.m.impl(short, INTERCEPTION_KEY, kernel, True)  # noqa: FBT003  # with the set of keys; no keyword

    def _kernel_for(self, name: str, made_of_others: Container[str]) -> Callable[..., Any]:
        if not passes(name, made_of_others, everything=self._everything):
            return self._kernel_of(name, self._told(self.handle))
        if self.listener is not None and not passes(name, made_of_others, everything=True):
            return self._kernel_of(name, self._told(_run_on))  # A product, which only the listener needs to see.
        return torch.library.fallthrough_kernel

    # Under a mode, PyTorch requires a kernel that is registered for the operator itself and not a fallback
    # (`python_op_registration_trampoline_impl` in torch/csrc/utils/python_dispatch.cpp, torch 2.11). This happens when
    # torch.compile traces operators that Inductor defines.
    def _follow_definitions(self) -> None:
        library_class: Any = torch.library.Library  # Its type stubs omit the returned name.
        define = library_class.define

        @functools.wraps(define)
        def defined(library: Any, schema: str, *arguments: Any, **keywords: Any) -> Any:
            name = define(library, schema, *arguments, **keywords)
            if not self.has_ended:
                with self.faults.kept("the definition of an operator"):
                    self.see_new_operators(f"{library.ns}::{schema.partition('(')[0].strip()}")
            return name

        library_class.define = defined
        load: Any = torch._ops._Ops.load_library

        @functools.wraps(load)
        def loaded(operators: Any, path: Any) -> None:
            load(operators, path)
            if not self.has_ended:
                with self.faults.kept("the definition of operators"):
                    self.see_new_operators()

        torch._ops._Ops.load_library = loaded  # type: ignore[method-assign]  # torch has no hook for it

    def _told(self, handle: Callable[["Invocation"], Any]) -> Callable[["Invocation"], Any]:
        listener = self.listener
        if listener is None:
            return handle

        place = "the search for avoidable memory"

        def tell_and_handle(op: Invocation) -> Any:
            hear_result: Callable[[Any], None] | None = None
            try:
                hear_result = listener(op.operator, op.arguments, op.keywords)
            except Exception as error:
                self.faults.note(place, error)
            result = handle(op)
            if hear_result is not None:
                try:
                    hear_result(result)
                except Exception as error:
                    self.faults.note(place, error)
            return result

        return tell_and_handle

    def _kernel_of(self, name: str, handle: Callable[["Invocation"], Any]) -> Callable[..., Any]:
        operator: Any = None

        def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal operator
            if operator is None:
                operator = overload_of(name)
            op = Invocation(keyset, operator, arguments, keywords)
            try:
                return handle(op)
            except BaseException as error:
                if self._is_own(error, op):
                    with deeper_stack(error):
                        return self._go_on(op, error)
                with suppress(Exception):
                    _let_go(error)
                del op, arguments, keywords
                raise

        return kernel

    def _fallback_of(self, handle: Callable[["Invocation"], Any]) -> Callable[..., Any]:
        kernels: dict[Any, Callable[..., Any]] = {}

        def fallback(keyset: Any, operator: Any, *arguments: Any, **keywords: Any) -> Any:
            kernel = kernels.get(operator)
            if kernel is None:
                kernel = kernels[operator] = self._kernel_of(operator.name(), handle)
            return kernel(keyset, *arguments, **keywords)

        return fallback

    # Whether an error belongs to ullage, and not to the script.
    def _is_own(self, error: BaseException, op: "Invocation") -> TypeGuard[Exception]:
        return isinstance(error, Exception) and not op.has_failed and not self.faults.is_of_script(error)

    def include(self, *, on: bool = True) -> None:
        """Start or stop interception in the calling thread, including its autograd work."""
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)


def _pass_by_higher_order_operators() -> None:
    keys: list[Any] = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if KEY in keys:
        return
    keys.append(KEY)
    for each in torch._ops._higher_order_ops.values():
        each.fallthrough(KEY)


def is_thread_seen() -> int | None:
    """Return the address of PyTorch's C++ function that tests whether a thread includes a dispatch key."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    function = getattr(library, _IS_INCLUDED, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


# The traceback of an exception would keep the tensors alive.
def _let_go(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename.startswith(_OWN_FILES):
            with suppress(RuntimeError):  # The frame is still running.
                frame.clear()
        trace = trace.tb_next


def _run_on(op: "Invocation") -> Any:
    op.plan = plan_of(op.operator)
    return op.run()


class Invocation:
    """A call of an intercepted operator, which can be run as PyTorch would have run it."""

    # Defaults of the class, because an object is made for each operator.
    result: Any = None
    """The value that the operator returned."""
    has_run = False
    """Whether the operator has ended without an error."""
    _has_begun = False

    def __init__(
        self,
        keyset: Any,
        operator: Any,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        plan: OperatorPlan | None = None,
    ) -> None:
        self.keyset = keyset
        self.operator = operator
        self.arguments = arguments
        self.keywords = keywords
        self.plan: Any = plan
        """The `OperatorPlan` of the operator. None: it has not been looked up yet."""

    @property
    def has_failed(self) -> bool:
        """Whether the operator itself has raised an error, which belongs to the script."""
        return self._has_begun and not self.has_run

    def written(self) -> list[Any]:
        """Return the arguments that the operator writes. An item may be a list of tensors or None."""
        return [argument_at(place, self.arguments, self.keywords) for place in self.plan.written]

    def run(self) -> Any:
        """Run the operator as PyTorch would have run it."""
        plan, arguments, keywords = self.plan, self.arguments, self.keywords
        if self.keyset.has(PYTHON) and (kinds := _kinds_in(arguments, keywords)) is not None:
            self._has_begun = True
            result = _to_python(self.operator, kinds, arguments, keywords)
            if result is not NotImplemented:
                return self._done(result)
        if plan.number_places and (places := plan.numbers_in(arguments)):
            # A number that PyTorch wrapped in a tensor arrives here as a number, which only a call through the full
            # dispatcher accepts.
            overload = plan.with_numbers(self.operator, places)
            if overload is None:
                arguments = [_wrapped(each) if place in places else each for place, each in enumerate(arguments)]
            else:
                self._has_begun = True
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    return self._done(overload(*arguments, **keywords))
        self._has_begun = True
        if plan.is_closed:
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                return self._done(self.operator.redispatch(self.keyset & _BELOW, *arguments, **keywords))
        self.result = result = self.operator.redispatch(self.keyset & _BELOW, *arguments, **keywords)
        self.has_run = True
        return result

    def run_plainly(self) -> Any:
        """Run the operator without its plan, after an error of ullage."""
        self._has_begun = True
        operator, arguments, keywords = self.operator, self.arguments, self.keywords
        has_numbers = any(
            each.__class__ in NUMBERS and str(one.type) == "Tensor"
            for each, one in zip(arguments, operator._schema.arguments, strict=False)
        )
        if has_numbers or operator.name() in CLOSED:
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                return self._done(operator(*arguments, **keywords))
        return self._done(operator.redispatch(self.keyset & _BELOW, *arguments, **keywords))

    def _done(self, result: Any) -> Any:
        self.result = result
        self.has_run = True
        return result


def _wrapped(number: complex) -> torch.Tensor:
    kind = number.__class__
    return torch.scalar_tensor(
        number, dtype=torch.bool if kind is bool else torch.int64 if kind is int else None, device="cpu"
    )


# The types with `__torch_dispatch__` among the arguments. None: PyTorch has to handle the call, for example while it
# traces.
def _kinds_in(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any] | None:
    get_mode = torch._C._get_dispatch_mode
    flat = [each for argument in (*arguments, *keywords.values()) for each in _flat(argument)]
    if _is_distributed(flat) or any(get_mode(key) is not None for key in _TRACERS):
        return None
    kinds = [kind for kind in dict.fromkeys(type(each) for each in flat) if _has_dispatch(kind)]
    kinds.sort(key=lambda kind: -len(kind.__mro__))
    return kinds


# During such a call, PyTorch excludes all keys before the Python key, and therefore the interception key
# (`pythonFallback` in ATen/core/PythonFallbackKernel.cpp). Here the key stays included, so that the operators inside
# the call are intercepted.
def _to_python(operator: Any, kinds: Sequence[Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_BEFORE_PYTHON):
        if torch._C._len_torch_dispatch_stack():
            with _pop_mode_temporarily() as mode:
                return mode.__torch_dispatch__(operator, tuple(kinds), tuple(arguments), dict(keywords))
        for kind in kinds:
            result = kind.__torch_dispatch__(operator, tuple(kinds), tuple(arguments), dict(keywords))
            if result is not NotImplemented:
                return result
    return NotImplemented


def _has_dispatch(kind: type[Any]) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl and issubclass(kind, torch.Tensor)


# PyTorch dispatches DTensors in C++, where ullage cannot intercept them.
def _is_distributed(arguments: Sequence[Any]) -> bool:
    return any(type(each).__module__.startswith("torch.distributed.tensor") for each in arguments)


def _flat(argument: Any) -> Sequence[Any]:
    return argument if isinstance(argument, list | tuple) else (argument,)


def tensors_in(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield all tensors in an operator's arguments or results, even in nested lists."""
    for each in arguments:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from tensors_in(each)
