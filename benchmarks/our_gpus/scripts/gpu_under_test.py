"""Print the first GPU's name and total memory as JSON. The driver is asked, because importing torch takes seconds."""

import ctypes
import json

cuda = ctypes.CDLL("libcuda.so.1")
device, total, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
for call, status in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
    ("cuDeviceGetName", cuda.cuDeviceGetName(name, len(name), device)),
    ("cuDeviceTotalMem_v2", cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)),
):
    if status:
        raise SystemExit(f"no GPU answers: {call} returned {status}")
print(json.dumps({"gpu": name.value.decode(), "total_memory_bytes": total.value}))
