"""Load NVIDIA's libcudnn, which can build plans without a GPU, a driver or a CUDA context.

Only cuDNN's documented interface for ahead-of-time planning is used: a device-properties descriptor
(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, cuDNN 9.8) replaces the handle. No plan is executed.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.gpu.emulator.cudnn.tree import TYPE_BOOLEAN, TYPE_DESCRIPTOR, TYPE_INT64, Node

OLDEST: Final = 90800
"""The number of the oldest cuDNN version that can build plans from a description of a GPU, without the GPU itself.

90800 means version 9.8.0.
"""

# Kinds, attributes and types as in cudnn_graph.h; those that occur in a query are in `tree`.
_ENGINE, _CONFIG, _HEURISTICS, _PLAN, _KNOB, _DEVICE = 2, 3, 4, 5, 7, 38
_HEURISTICS_RESULTS, _HEURISTICS_DEVICE = 202, 204
_CONFIG_ENGINE, _CONFIG_KNOBS = 300, 302
_PLAN_CONFIG, _PLAN_WORKSPACE, _PLAN_DEVICE = 401, 402, 407
_KNOB_TYPE, _KNOB_VALUE = 600, 601
_ENGINE_INDEX, _ENGINE_NOTES, _ENGINE_BEHAVIOUR, _ENGINE_DEVICE = 1301, 1303, 1305, 1307
_DEVICE_JSON = 2702
_TYPE_KNOB, _TYPE_NOTE, _TYPE_BEHAVIOUR, _TYPE_CHAR, _TYPE_FRACTION = 9, 11, 19, 24, 26
_MOST_NOTES: Final = 32
_MOST_KNOBS: Final = 64
_TEXT_BYTES: Final = 4096
_DEVICE_OF: Final = {_HEURISTICS: _HEURISTICS_DEVICE, _ENGINE: _ENGINE_DEVICE, _PLAN: _PLAN_DEVICE}


class CudnnError(Exception):
    """cuDNN has refused a query. The error text is cuDNN's own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A cuDNN engine (implementation) that can run a graph."""

    index: int
    notes: tuple[int, ...]
    """The numerical notes of the engine (cudnnBackendNumericalNote_t).

    PyTorch uses them to exclude engines that are not deterministic or do not compute in fp32.
    """
    behaviours: tuple[int, ...]
    knobs: tuple[tuple[int, int], ...]


class Descriptor:
    """A cuDNN descriptor, which is destroyed together with this object."""

    def __init__(self, library: "Cudnn", kind: int) -> None:
        self._library = library
        self.kept: list[Descriptor] = []
        self.pointer = ctypes.c_void_p()
        library.check(library.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(self.pointer)))

    def __del__(self) -> None:
        if self.pointer:
            self._library.library.cudnnBackendDestroyDescriptor(self.pointer)


class Cudnn:
    """The real cuDNN library, loaded with a description of a GPU."""

    def __init__(self, path: Path, device_json: str) -> None:
        """Load the real cuDNN library into this process.

        Args:
            path: the path of libcudnn.so.9.
            device_json: the GPU's description, as `start.json_of` returns it.

        Raises:
            CudnnError: the library is too old, or does not accept the GPU's description.
            OSError: the library cannot be loaded.
        """
        self.library = ctypes.CDLL(str(path))
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self.library.cudnnGetVersion())
        if self.version < OLDEST:
            raise CudnnError(0, f"cuDNN {self.version} cannot plan for a described GPU; {OLDEST} and newer can")
        self._device = Descriptor(self, _DEVICE)
        self._set(self._device, _DEVICE_JSON, _TYPE_CHAR, list(device_json.encode()))
        self._finalize(self._device)
        # These buffers are reused: a graph may have forty engines, each with space for every kind of knob.
        self._an_engine = Descriptor(self, _ENGINE)
        self._some_knobs = [Descriptor(self, _KNOB) for _ in range(_MOST_KNOBS)]

    def check(self, status: int) -> None:
        """Raise CudnnError if a cuDNN call has failed."""
        if status:
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            self.library.cudnnGetLastErrorString(text, ctypes.c_size_t(_TEXT_BYTES))
            # cuDNN's message, which includes places in its source code, is shortened to the reason.
            reason = " ".join(text.value.decode(errors="replace").split())[:300]
            raise CudnnError(status, reason or f"status {status}")

    def candidates(self, question: Sequence[Node]) -> list[tuple[Engine, Descriptor]]:
        """Return the cuDNN engines that can run a graph, in cuDNN's order of preference.

        Args:
            question: the graph as a list of cuDNN descriptors. The last one describes the engine heuristics to use.

        Raises:
            CudnnError: the graph has no engine, or cuDNN refuses the graph.
        """
        heuristics = self.build(question)
        return [(self._engine(config), config) for config in self._configs(heuristics)]

    def workspace_bytes(self, config: Descriptor) -> int:
        """Build a cuDNN plan, and return its workspace size in bytes.

        Raises:
            CudnnError: the engine does not support the graph on this GPU.
        """
        plan = Descriptor(self, _PLAN)
        self._point(plan, _PLAN_CONFIG, [config])
        self._point(plan, _PLAN_DEVICE, [self._device])
        self._finalize(plan)
        return self._numbers(plan, _PLAN_WORKSPACE, TYPE_INT64, 1)[0]

    def build(self, tree: Sequence[Node]) -> Descriptor:
        """Create a cuDNN descriptor and all descriptors that it refers to."""
        made: list[Descriptor] = []
        for node in tree:
            descriptor = Descriptor(self, node.kind)
            for attribute in node.attributes:
                if attribute.type == TYPE_DESCRIPTOR:
                    self._point(descriptor, attribute.name, [made[child] for child in attribute.values])
                else:
                    self._set(descriptor, attribute.name, attribute.type, list(attribute.values))
            if node.kind in _DEVICE_OF:
                self._point(descriptor, _DEVICE_OF[node.kind], [self._device])
            self._finalize(descriptor)
            made.append(descriptor)
        return made[-1]

    def _engine(self, config: Descriptor) -> Engine:
        (engine,) = self._read_into([self._an_engine], config, _CONFIG_ENGINE)
        knobs = self._read_into(self._some_knobs, config, _CONFIG_KNOBS)
        return Engine(
            index=self._numbers(engine, _ENGINE_INDEX, TYPE_INT64, 1)[0],
            notes=self._numbers(engine, _ENGINE_NOTES, _TYPE_NOTE, _MOST_NOTES),
            behaviours=self._numbers(engine, _ENGINE_BEHAVIOUR, _TYPE_BEHAVIOUR, _MOST_NOTES),
            knobs=tuple(
                (self._numbers(knob, _KNOB_TYPE, _TYPE_KNOB, 1)[0], self._numbers(knob, _KNOB_VALUE, TYPE_INT64, 1)[0])
                for knob in knobs
            ),
        )

    def _finalize(self, descriptor: Descriptor) -> None:
        self.check(self.library.cudnnBackendFinalize(descriptor.pointer))

    def _set(self, descriptor: Descriptor, name: int, kind: int, values: list[int]) -> None:
        array = _array(kind, values)
        count = ctypes.c_int64(len(values) // 2 if kind == _TYPE_FRACTION else len(values))
        self.check(self.library.cudnnBackendSetAttribute(descriptor.pointer, name, kind, count, array))

    def _point(self, descriptor: Descriptor, name: int, children: list[Descriptor]) -> None:
        array = (ctypes.c_void_p * len(children))(*(child.pointer.value for child in children))
        count = ctypes.c_int64(len(children))
        self.check(self.library.cudnnBackendSetAttribute(descriptor.pointer, name, TYPE_DESCRIPTOR, count, array))
        descriptor.kept += children  # Kept alive, because cuDNN does not document whether it copies them.

    def _numbers(self, descriptor: Descriptor, name: int, kind: int, room: int) -> tuple[int, ...]:
        array = _array(kind, [0] * room)
        count, get = ctypes.c_int64(), self.library.cudnnBackendGetAttribute
        self.check(get(descriptor.pointer, name, kind, ctypes.c_int64(room), ctypes.byref(count), array))
        return tuple(int(value) for value in array[: min(count.value, room)])

    def _configs(self, heuristics: Descriptor) -> list[Descriptor]:
        count = ctypes.c_int64()
        get = self.library.cudnnBackendGetAttribute
        none = ctypes.c_int64(0)
        self.check(get(heuristics.pointer, _HEURISTICS_RESULTS, TYPE_DESCRIPTOR, none, ctypes.byref(count), None))
        configs = self._read_into(
            [Descriptor(self, _CONFIG) for _ in range(count.value)], heuristics, _HEURISTICS_RESULTS
        )
        for config in configs:
            config.kept.append(heuristics)
        return configs

    def _read_into(self, descriptors: list[Descriptor], owner: Descriptor, name: int) -> list[Descriptor]:
        if not descriptors:
            return []
        array = (ctypes.c_void_p * len(descriptors))(*(descriptor.pointer.value for descriptor in descriptors))
        count, room = ctypes.c_int64(), ctypes.c_int64(len(descriptors))
        get = self.library.cudnnBackendGetAttribute
        self.check(get(owner.pointer, name, TYPE_DESCRIPTOR, room, ctypes.byref(count), array))
        return descriptors[: count.value]


def _array(
    kind: int, values: list[int]
) -> "ctypes.Array[ctypes.c_int64] | ctypes.Array[ctypes.c_int32] | ctypes.Array[ctypes.c_uint8]":
    if kind in (TYPE_INT64, 5, _TYPE_FRACTION):  # 5: double, as its bits
        return (ctypes.c_int64 * len(values))(*values)
    if kind in (TYPE_BOOLEAN, _TYPE_CHAR):
        return (ctypes.c_uint8 * len(values))(*values)
    return (ctypes.c_int32 * len(values))(*values)
