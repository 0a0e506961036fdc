"""What a report tells people to run can be run."""

import pytest

from ullage.gpu.gpus import find_gpu
from ullage.predicting.prediction.description.describe import _GPU_BY_SIZE


@pytest.mark.parametrize("size", ["8GiB", "24GiB", "6.5GiB", "300MiB"])
def test_a_gpu_that_was_given_by_its_size_is_named_by_options(size: str) -> None:
    named = find_gpu(size, arch="sm_90")
    found = _GPU_BY_SIZE.fullmatch(named.short_name)
    assert found is not None, named.short_name
    assert find_gpu(f"{found[1]}{found[2]}", arch=found[3]) == named
