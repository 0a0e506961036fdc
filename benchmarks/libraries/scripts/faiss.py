"""faiss: a flat index on the card (built for CUDA 12, beside a torch for CUDA 13), and a search in it."""

import faiss
import numpy as np
from counted import Counted

VECTORS, WIDTH, TEMPORARY_BYTES = 131_072, 64, 64 << 20
PAGE = 2 << 20


def run(counted: Counted) -> None:
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(TEMPORARY_BYTES)
    index = faiss.GpuIndexFlatL2(resources, WIDTH)
    vectors = np.zeros((VECTORS, WIDTH), dtype=np.float32)
    index.add(vectors)
    # Vectors, their norms and the temporary memory, in whole pages of the driver.
    sizes = (4 * VECTORS * WIDTH, 4 * VECTORS, TEMPORARY_BYTES)
    counted.equal("index and temporary memory", counted.look(), sum(-(-size // PAGE) * PAGE for size in sizes))
    distances, _ = index.search(vectors[:16], 4)
    assert distances.shape == (16, 4)
