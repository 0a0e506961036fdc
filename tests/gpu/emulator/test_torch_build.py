"""Which torch runs on which card."""

import pytest

from ullage.gpu.emulator.torch_build import has_code_for, release_of

CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), True), ((10, 3), True), ((12, 1), True)],
)
def test_a_build_runs_on_the_generations_it_has_code_for(capability: tuple[int, int], runs: bool) -> None:
    assert has_code_for(capability, CUDA_13) is runs


def test_older_ptx_runs_on_newer_cards_and_an_empty_list_forbids_nothing() -> None:
    assert has_code_for((13, 0), CUDA_13)
    assert not has_code_for((11, 0), ["sm_90a", "compute_120"])
    assert has_code_for((7, 0), [])


def test_a_release_is_two_numbers() -> None:
    assert release_of("2.11.0+cu130") == (2, 11)
    assert release_of("2.15.0a0+git123") == (2, 15)
