"""The description of a card as the JSON text that cuDNN's device-properties descriptor takes."""

import json
from collections.abc import Mapping
from typing import Final

# What no list of cards has, and what was the same in every program that was found. Of what is described only the
# compute capability changed cuDNN's answers much; the number of multiprocessors did a little on older cards.
_CLOCK_KHZ: Final = 1_500_000
_MEMORY_CLOCK_KHZ: Final = 5_000_000
_SHARED_PER_BLOCK_BYTES: Final = 48 << 10
_RESERVED_SHARED_PER_BLOCK_BYTES: Final = 1 << 10  # from compute capability 8.0 on
_AMPERE: Final = 8


def json_of(name: str, figures: Mapping[str, int], *, cuda_number: int) -> str:
    """Describe a card.

    Args:
        name: the driver's name of the card.
        figures: the values of `ullage.gpu.emulator.library.FIGURES`.
        cuda_number: 13000 for CUDA 13.0.
    """
    capability = figures["cc_major"] * 10 + figures["cc_minor"]
    return json.dumps(
        {
            "deviceName": name,
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "deviceVer": capability * 10,
            "driverVer": cuda_number,
            "isTccDriver": 0,
            "warpSize": 32,
            "multiProcessorCount": figures["sm_count"],
            "totalGlobalMem": figures["total_memory_bytes"],
            "l2CacheSize": figures["l2_cache_bytes"],
            "smClockRateKHz": _CLOCK_KHZ,
            "memClockRateKHz": _MEMORY_CLOCK_KHZ,
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": figures["max_threads_per_sm"],
            "maxCtasPerSM": figures["max_blocks_per_sm"],
            "regsPerBlock": 65536,
            "maxRegistersPerSM": figures["regs_per_sm"],
            "maxSharedMemoryPerBlock": _SHARED_PER_BLOCK_BYTES,
            "maxSharedMemoryPerBlockOptin": figures["shared_memory_per_block_optin_bytes"],
            "reservedSharedMemoryPerBlock": _RESERVED_SHARED_PER_BLOCK_BYTES if figures["cc_major"] >= _AMPERE else 0,
            "supportCoopLaunch": 1,
        },
        sort_keys=True,
    )
