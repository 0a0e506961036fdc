"""Write safetensors files of any size that take almost no disk space, because they are sparse files."""

# Small tensors are written with random numbers. A script may read them back from the GPU or branch on them, and zeros
# would not be realistic for a trained model.

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ullage.base.own_files import OwnFolder

if TYPE_CHECKING:
    import torch

WRITTEN_BYTES: Final = 4 << 20
"""The maximum size in bytes of a tensor whose values are written into a generated weights file.

The values of larger tensors are not needed, because the emulated GPU does not store them.
"""
_MOST_WRITTEN_BYTES: Final = 256 << 20
_SPREAD: Final = 0.02
# In the order in which the safetensors library sorts the data types.
_CODES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}


def write_sparse_file(
    folder: OwnFolder, name: str, tensors: Mapping[str, "torch.Tensor"], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a sparse safetensors file for tensors with the given shapes and data types.

    Raises:
        OSError: the file cannot be written.
    """
    order = list(_CODES)
    codes = {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in tensors.items()}
    begin = 0
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    keys = sorted(tensors, key=lambda key: (-order.index(codes[key]), key))
    for key in keys:
        end = begin + tensors[key].numel() * tensors[key].element_size()
        header[key] = {"dtype": _CODES[codes[key]], "shape": list(tensors[key].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    descriptor, _ = folder.new_file(name)
    try:
        os.write(descriptor, len(text).to_bytes(8, "little") + text)
        os.ftruncate(descriptor, 8 + len(text) + begin)
        _write_small(descriptor, 8 + len(text), [(tensors[key], header[key]["data_offsets"][0]) for key in keys])
    finally:
        os.close(descriptor)


@contextmanager
def saved_as_holes(module: Any, name: str, folder: OwnFolder) -> Iterator[None]:
    """Make a library's function write sparse files while the `with` block runs.

    The function must save tensors to safetensors files.
    """
    original = getattr(module, name)

    def save(tensors: dict[str, Any], path: str, metadata: dict[str, str] | None = None) -> None:
        write_sparse_file(folder, os.path.basename(path), tensors, metadata)

    setattr(module, name, save)
    try:
        yield
    finally:
        setattr(module, name, original)


def _write_small(descriptor: int, begin: int, tensors: list[tuple["torch.Tensor", int]]) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    room = _MOST_WRITTEN_BYTES
    for tensor, offset in tensors:
        size = tensor.numel() * tensor.element_size()
        if not size or size > min(WRITTEN_BYTES, room) or not tensor.dtype.is_floating_point:
            continue
        room -= size
        numbers = torch.empty(tensor.shape, dtype=torch.float32, device="cpu").normal_(0, _SPREAD, generator=generator)
        if tensor.dim() == 1:
            numbers += 1  # the weights of normalisation layers; for biases the value does not affect memory
        raw = numbers.to(tensor.dtype).flatten().view(torch.uint8).numpy()
        os.pwrite(descriptor, raw.tobytes(), begin + offset)
