"""Sends Python objects to another process through shared memory.

The shared memory is an anonymous file (`memfd_create`), so nothing remains in /dev/shm after a crash. Arrays and
tensors are written without an extra copy. A tensor on a GPU arrives on the same GPU or on the CPU.
"""

import io
import json
import mmap
import os
import pickle
import struct
import sys
from collections import ChainMap
from contextlib import suppress
from types import CodeType
from typing import Any, ClassVar, Final

import cloudpickle

from ullage.base.child_process import beside_streams

_PAGE_BYTES: Final = mmap.PAGESIZE
_SMALL_BYTES: Final = 1 << 16  # smaller buffers are stored inside the pickle
_LARGEST_WRITE_BYTES: Final = 1 << 30  # the kernel accepts at most 2 GiB in one call
_HEADER: Final = struct.Struct("<QQQQ")  # offset of the tail, number of buffers, bytes of the note, bytes of the pickle
_PLACE: Final = struct.Struct("<QQ")
_NO_FILE: Final = "<dynamic-code>"  # the file name that cloudpickle 3.1.3 gives every function


def new_file() -> int:
    """Create an empty shared memory file, and return its file descriptor."""
    return beside_streams(os.memfd_create("ullage-parcel", os.MFD_CLOEXEC))


def write(file: int, value: Any, *, note: dict[str, Any], keep_device: bool) -> None:
    """Write an object and JSON data into an empty shared memory file. If this process dies meanwhile, the file stays
    empty for readers.

    Args:
        file: the file descriptor of the shared memory file.
        value: any object that cloudpickle can pickle, including functions and classes of `__main__`, lambdas and
            closures.
        note: JSON data that can be read without unpickling the object.
        keep_device: whether a tensor on a GPU arrives on the same GPU; otherwise it arrives on the CPU.

    Raises:
        Exception: any error that the value's classes raise when they are pickled.
    """
    places: list[tuple[int, int]] = []
    end = _PAGE_BYTES

    def put(buffer: pickle.PickleBuffer) -> bool:
        nonlocal end
        with buffer.raw() as raw:
            if raw.nbytes < _SMALL_BYTES:
                return True
            _write_at(file, raw, end)
            places.append((end, raw.nbytes))
            end += -(-raw.nbytes // _PAGE_BYTES) * _PAGE_BYTES
        buffer.release()  # nothing else refers to the host copy of a GPU tensor
        return False

    stream = io.BytesIO()
    _Pickler(stream, put, keep_device=keep_device).dump(value)
    text = json.dumps(note).encode()
    _write_at(file, memoryview(b"".join([*(_PLACE.pack(*place) for place in places), text])), end)
    _write_at(file, stream.getbuffer(), end + len(places) * _PLACE.size + len(text))
    _write_at(file, memoryview(_HEADER.pack(end, len(places), len(text), stream.tell())), 0)


def read_note(file: int) -> dict[str, Any] | None:
    """Return the JSON data in a shared memory file. None if the file is empty."""
    if os.fstat(file).st_size < _PAGE_BYTES:
        return None
    tail, buffers, length, _ = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    if not tail:
        return None
    note: dict[str, Any] = json.loads(os.pread(file, length, tail + buffers * _PLACE.size))
    return note


def read_value(file: int) -> Any:
    """Return the object in a shared memory file. This works only once, because it frees the memory.

    Raises:
        Exception: any error that the value's classes raise when they are unpickled.
    """
    tail, count, note, length = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    with mmap.mmap(file, os.fstat(file).st_size) as mapping:
        buffers = [_take(mapping, *_PLACE.unpack_from(mapping, tail + i * _PLACE.size)) for i in range(count)]
        start = tail + count * _PLACE.size + note
        with memoryview(mapping) as whole, whole[start : start + length] as stream:
            return pickle.loads(stream, buffers=buffers)


def _take(mapping: mmap.mmap, start: int, length: int) -> bytearray:
    with memoryview(mapping) as whole, whole[start : start + length] as part:
        copy = bytearray(part)
    with suppress(OSError):  # a kernel without this feature frees the pages together with the parcel
        mapping.madvise(mmap.MADV_REMOVE, start, -(-length // _PAGE_BYTES) * _PAGE_BYTES)
    return copy


def _write_at(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(file, data[done : done + _LARGEST_WRITE_BYTES], offset + done)


def _code(code: CodeType) -> tuple[Any, ...]:
    # cloudpickle 3.1.3 omits the file name, which tracebacks need to show source lines
    make, arguments, *rest = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if each == _NO_FILE else each for each in arguments), *rest


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    dispatch_table: ClassVar = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, stream: io.BytesIO, put: Any, *, keep_device: bool) -> None:
        super().__init__(stream, protocol=5, buffer_callback=put)
        self._keep_device = keep_device

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None:
            if type(obj) is torch.UntypedStorage:
                return self._storage(torch, obj)
            if type(obj) is torch.TypedStorage:
                return _typed_storage, (obj._untyped_storage, obj.dtype)
        if isinstance(obj, BaseException):
            return _error(obj)
        return super().reducer_override(obj)

    def _storage(self, torch: Any, storage: Any) -> Any:
        kind = storage.device.type
        if kind not in ("cpu", "cuda") or not storage.nbytes():
            return NotImplemented if kind not in ("cpu", "cuda") else (_storage_of, (b"", None))
        on_host = storage if kind == "cpu" else storage.cpu()
        raw = torch.empty(0, dtype=torch.uint8).set_(on_host).numpy()
        device = str(storage.device) if kind == "cuda" and self._keep_device else None
        return _storage_of, (pickle.PickleBuffer(raw), device)


def _storage_of(data: Any, device: str | None) -> Any:
    import torch

    if not len(data):
        return torch.UntypedStorage(0)
    storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    return storage if device is None else storage.to(device=torch.device(device))


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _error(error: BaseException) -> Any:
    # if its class cannot be called with the exception's arguments, the exception is restored without `__init__`
    try:
        reduced: Any = error.__reduce_ex__(5)
        again = reduced[0](*reduced[1])
        if type(again) is type(error) and again.args == error.args and str(again) == str(error):
            return reduced
    except Exception:
        pass
    return _bare_error, (type(error), error.args), dict(vars(error))


def _bare_error(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *arguments)
