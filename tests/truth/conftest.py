"""The records of the installed torch: which test gets which, and one running process of a card for them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.truth.record import Card, Record, load_records
from tests.truth.runner import Runner
from ullage import TorchMissingError
from ullage.gpu.emulator.torch_build import find_torch

H100 = "NVIDIA H100 80GB HBM3"
ONLY_WITH_ALL_RECORDS = "NVIDIA GeForce RTX 4090"
# A prediction takes seconds, most of them torch's import: one of each kind by default, all with --all-records.
ROLES_BY_DEFAULT = frozenset(
    (
        *("mlp_adamw", "mlp_adamw_fused", "mlp_big_sgd_bigbatch", "mlp_big_adafactor", "gpt_tiny_dropout"),
        *("gpt2s_b4_t1024_bf16", "gpt2s_b4_fp16_scaler", "gpt2s_b8_ckpt_bf16", "gpt2s_b2_accum4_bf16"),
        *("gpt2s_b4_zero_grad_keep", "gpt2s_infer_no_grad", "bert_b16_t128_bf16", "hf_llama_160m_b4_t1024_bf16"),
        *("vit_b16_b32_fp32", "resnet50_b32_sgd", "unet_b4_256"),
    )
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `record` all records of the default cards (or of every card), and `h100_record` those of an H100."""
    everything = metafunc.config.getoption("all_records")
    if "record" in metafunc.fixturenames:
        chosen = _parameters(lambda record: everything or record.card.gpu != ONLY_WITH_ALL_RECORDS)
        metafunc.parametrize("record", chosen)
    if "h100_record" in metafunc.fixturenames:
        chosen = _parameters(
            lambda record: (
                record.card.gpu == H100
                and not record.card.alloc_conf
                and (everything or record.name in ROLES_BY_DEFAULT)
            )
        )
        metafunc.parametrize("h100_record", chosen)


def _parameters(chosen: Callable[[Record], bool]) -> list[Any]:
    try:
        version = find_torch().version
    except TorchMissingError as error:
        return [_skipped(str(error), "no-torch")]
    records = [record for record in load_records() if record.torch == version]
    if not records:
        return [_skipped(f"there are no records for torch {version}; see tests/truth/MANIFEST.md", "no-records")]
    return [pytest.param(record, id=record.id, marks=_marks(record)) for record in records if chosen(record)]


def _marks(record: Record) -> list[pytest.MarkDecorator]:
    missing = record.missing_package
    return [pytest.mark.skip(reason=f"{record.name} needs {missing}, which is not installed")] if missing else []


def _skipped(reason: str, name: str) -> Any:
    return pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason))


class Measurements:
    """Measure records, with one process running: that of the card that was asked for last."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def of(self, card: Card, name: str) -> dict[str, Any]:
        """Measure a workload on a card."""
        if self._runner is None or self._runner.card != card:
            self.close()
            self._runner = Runner(card)
        measured = self._runner.measure(name)
        assert "error" not in measured, f"{name} on {card.gpu}: {measured['error']}"
        return measured

    def close(self) -> None:
        """End the process."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


@pytest.fixture(scope="session")
def measurements() -> Iterator[Measurements]:
    """What is measured now, to hold against the records."""
    try:
        find_torch()
    except TorchMissingError as error:
        pytest.skip(str(error))
    measurements = Measurements()
    yield measurements
    measurements.close()


@pytest.fixture
def small() -> Record:
    """A record of the smallest workload, to try the comparisons on."""
    return next(record for record in load_records() if record.name == "mlp_sgd")
