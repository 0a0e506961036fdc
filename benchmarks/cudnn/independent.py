"""Ask cuDNN's deviceless interface for the workspaces of a net's convolutions, from the shapes of its layers alone.

    python layers.py resnet50:fp32:channels_first \\
        | python independent.py LIBCUDNN CARD_JSON fp32 CUBLASLT apart LIBCUDA NVRTC_BUILTINS

prints a JSON list of [direction, x, w, y, channels last, workspace, depthwise]. It shares no code with the emulator:
graphs are built here, from the shapes, and the rule is PyTorch's (aten/src/ATen/native/cudnn/Conv_v8.cpp, 2.11): the
first engine configuration of the instant heuristics whose plan can be built, and else of the fallback's; fp32 takes no
engine that rounds its inputs, and "fp32-strict" (without TF32) none that uses tensor cores; engines that were found to
be wrong are left out. cuDNN looks for cuBLAS in the whole process, and for a driver and NVRTC's builtins by name, to
compile kernels that then never run.
"""

import ctypes
import json
import sys
from typing import Any

FLOAT, DOUBLE, HALF, INT64, BF16 = 0, 1, 2, 3, 9
TYPES = {"fp32": FLOAT, "fp32-strict": FLOAT, "fp64": DOUBLE, "fp16": HALF, "bf16": BF16}
TENSOR_CORE, DOWN_CONVERT_INPUTS = 0, 1  # cudnnBackendNumericalNote_t
# operation kind, and its attributes: alpha, beta, convolution, w, x, y
FORWARD = (10, 700, 701, 702, 703, 704, 705)
DATA = (12, 706, 707, 708, 709, 710, 711)
FILTER = (11, 712, 713, 714, 715, 716, 717)
DIRECTIONS = {"forward": FORWARD, "input": DATA, "weights": FILTER}

cudnn: Any = None


def must(status: int) -> None:
    if status:
        text = ctypes.create_string_buffer(1024)
        cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(1024))
        raise RuntimeError(text.value.decode())


def make(kind: int, *attributes: tuple[int, int, list[Any], Any]) -> ctypes.c_void_p:
    """Create a descriptor, set (name, type, values, C type), finalize."""
    descriptor = ctypes.c_void_p()
    must(cudnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
    for name, kind_of, values, ctype in attributes:
        array = (ctype * len(values))(*values)
        must(cudnn.cudnnBackendSetAttribute(descriptor, name, kind_of, ctypes.c_int64(len(values)), array))
    must(cudnn.cudnnBackendFinalize(descriptor))
    return descriptor


def pointer(name: int, descriptor: ctypes.c_void_p) -> tuple[int, int, list[Any], Any]:
    return name, 15, [descriptor.value], ctypes.c_void_p


def integers(name: int, values: list[int]) -> tuple[int, int, list[Any], Any]:
    return name, 3, values, ctypes.c_int64


def strides_of(sizes: list[int], *, channels_last: bool) -> list[int]:
    order = [*range(len(sizes) - 1, -1, -1)]
    if channels_last:
        order = [1, *range(len(sizes) - 1, 1, -1), 0]
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = step
        step *= sizes[axis]
    return strides


def tensor(number: int, sizes: list[int], dtype: int, *, channels_last: bool) -> ctypes.c_void_p:
    return make(
        17,
        (901, 1, [dtype], ctypes.c_int32),
        integers(902, sizes),
        integers(903, strides_of(sizes, channels_last=channels_last)),
        integers(906, [number]),
        integers(900, [32]),
    )


def engine_of(config: ctypes.c_void_p) -> tuple[int, list[int]]:
    """Return the index and the numerical notes of a configuration's engine."""
    engine, count = ctypes.c_void_p(), ctypes.c_int64()
    must(cudnn.cudnnBackendCreateDescriptor(2, ctypes.byref(engine)))
    one = ctypes.c_int64(1)
    must(cudnn.cudnnBackendGetAttribute(config, 300, 15, one, ctypes.byref(count), ctypes.byref(engine)))
    notes = (ctypes.c_int32 * 32)()
    must(cudnn.cudnnBackendGetAttribute(engine, 1303, 11, ctypes.c_int64(32), ctypes.byref(count), notes))
    noted, index = count.value, ctypes.c_int64()
    must(cudnn.cudnnBackendGetAttribute(engine, 1301, 3, one, ctypes.byref(count), ctypes.byref(index)))
    must(cudnn.cudnnBackendDestroyDescriptor(engine))
    return index.value, list(notes[:noted])


def withdrawn(dimensions: int) -> set[tuple[str, int]]:
    """List the engines that are known to be wrong, which PyTorch (2.11 and 2.15) leaves out by its errata."""
    return {("input", 23)} if dimensions == 3 else set()


def workspace(
    direction: str,
    layer: dict[str, Any],
    dtype: int,
    unwanted: set[int],
    wrong: set[tuple[str, int]],
    device: ctypes.c_void_p,
) -> int | None:
    kind, alpha, beta, how, w, x, y = DIRECTIONS[direction]
    last = layer["channels_last"]
    convolution = make(
        1,
        (100, 1, [DOUBLE if dtype == DOUBLE else FLOAT], ctypes.c_int32),
        (101, 7, [1], ctypes.c_int32),  # cross-correlation
        integers(106, [len(layer["stride"])]),
        integers(103, layer["stride"]),
        integers(104, layer["padding"]),
        integers(105, layer["padding"]),
        integers(102, layer["dilation"]),
    )
    operation = make(
        kind,
        pointer(x, tensor(ord("x"), layer["x"], dtype, channels_last=last)),
        pointer(w, tensor(ord("w"), layer["w"], dtype, channels_last=last)),
        pointer(y, tensor(ord("y"), layer["y"], dtype, channels_last=last)),
        pointer(how, convolution),
        (alpha, 4, [1.0], ctypes.c_float),
        (beta, 4, [0.0], ctypes.c_float),
    )
    graph = make(15, pointer(801, operation))
    for mode in (0, 2):  # instant, then the fallback
        heuristics = make(4, pointer(201, graph), (200, 8, [mode], ctypes.c_int32), pointer(204, device))
        count = ctypes.c_int64()
        must(cudnn.cudnnBackendGetAttribute(heuristics, 202, 15, ctypes.c_int64(0), ctypes.byref(count), None))
        configs = [ctypes.c_void_p() for _ in range(count.value)]
        for config in configs:
            must(cudnn.cudnnBackendCreateDescriptor(3, ctypes.byref(config)))
        array = (ctypes.c_void_p * len(configs))(*(config.value for config in configs))
        must(cudnn.cudnnBackendGetAttribute(heuristics, 202, 15, count, ctypes.byref(count), array))
        for config in configs[: count.value]:
            engine, notes = engine_of(config)
            if unwanted.intersection(notes) or (direction, engine) in wrong:
                continue
            try:
                plan = make(5, pointer(401, config), pointer(407, device))
            except RuntimeError:
                continue
            size, one = ctypes.c_int64(), ctypes.c_int64()
            must(cudnn.cudnnBackendGetAttribute(plan, 402, 3, ctypes.c_int64(1), ctypes.byref(one), ctypes.byref(size)))
            return size.value
    return None


def flat(layer: dict[str, Any]) -> dict[str, Any]:
    """A convolution over time is one over pictures of height 1; a transposed one is the gradient of the plain one."""
    layer = dict(layer)
    if len(layer["stride"]) == 1:
        for name in ("x", "w", "y"):
            layer[name] = [*layer[name][:2], 1, layer[name][2]]
        layer |= {
            "stride": [1, *layer["stride"]],
            "padding": [0, *layer["padding"]],
            "dilation": [1, *layer["dilation"]],
        }
    if layer["transposed"]:
        layer["x"], layer["y"] = layer["y"], layer["x"]
    return layer


def main(library: str, device_json: str, type_name: str, *preload: str) -> None:
    global cudnn
    shared, apart = " ".join(preload).split(" apart ")
    for path in shared.split():
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for path in apart.split():
        ctypes.CDLL(path)
    cudnn = ctypes.CDLL(library)
    unwanted = {"fp32": {DOWN_CONVERT_INPUTS}, "fp32-strict": {DOWN_CONVERT_INPUTS, TENSOR_CORE}}.get(type_name, set())
    device = make(38, (2702, 24, list(device_json.encode()), ctypes.c_uint8))
    answers = []
    known: dict[str, int | None] = {}
    for layer in map(flat, json.load(sys.stdin)):
        directions = ["input" if layer["transposed"] else "forward", "weights"]
        if layer["input_needs_grad"]:
            directions.append("forward" if layer["transposed"] else "input")
        wrong = withdrawn(len(layer["x"]) - 2)
        for direction in directions:
            problem = [direction, layer["x"], layer["w"], layer["y"], layer["channels_last"]]
            question = json.dumps([problem, layer["stride"], layer["padding"], layer["dilation"]])
            if question not in known:  # many layers of a net are alike
                known[question] = workspace(direction, layer, TYPES[type_name], unwanted, wrong, device)
            answers.append([*problem, known[question], layer["depthwise"]])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
