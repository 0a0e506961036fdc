"""CTranslate2: an array on the GPU."""

import ctranslate2
import numpy as np
from counted import Counted


def run(counted: Counted) -> None:
    assert ctranslate2.get_cuda_device_count() == 1
    ctranslate2.StorageView.from_array(np.zeros((1024, 1024), np.float32)).to_device(ctranslate2.Device.cuda)
    counted.look()
