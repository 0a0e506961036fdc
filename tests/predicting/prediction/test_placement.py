"""Where the driver puts segments: what it decides of a run, and what is said of it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.placement import PLACEMENTS
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.predicting.prediction.description.describe import describe
from ullage.predicting.prediction.measurement.placement import addresses_count
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request
from ullage.report.report import Meter

MIB = 1 << 20
ADDRESSES_COUNT = addresses_count(find_torch().version)
CONTEXT_BYTES = 100 * MIB
# Two segments with a free half each: which one is taken for z decides whether the other becomes whole again.
TIE = """
import torch
def empty(mib): return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
a, b = empty(64), empty(64)
del a
x = empty(32)
del b
filler = empty(32)
y = empty(32)
del filler
z = empty(32)
del x
w = empty(64)
"""
NO_TIE = TIE.replace("y = empty(32)", "y = empty(30)")


def predicted(folder: Path, script: str, **more: Any) -> Prediction:
    path = folder / "script.py"
    path.write_text(script)
    request = Request.of(path, gpu="T4", steps=3, context=CONTEXT_BYTES, **more)
    return client.call(predict, request)


@pytest.mark.parametrize(("placement", "reserved"), [("linux", 128), ("windows", 192), ("wsl", 192)])
def test_up_to_torch_2_11_the_driver_decides_what_a_tie_reserves(tmp_path: Path, placement: str, reserved: int) -> None:
    """The later segment lies lower on Linux and higher elsewhere; the answer has the interval over placements."""
    found = predicted(tmp_path, TIE, placement=placement)
    if not ADDRESSES_COUNT:
        assert (found.placement, found.peak_reserved_bytes) == (None, 192 * MIB)
        assert found.interval_bytes == (292 * MIB, 292 * MIB)
        return
    assert found.peak_reserved_bytes == reserved * MIB
    assert found.placement.is_certain
    assert found.placement.ties
    assert found.interval_bytes == ((128 + 100) * MIB, (192 + 100) * MIB)


def test_each_placement_has_a_report(tmp_path: Path) -> None:
    """Whatever the driver, what is said of reserved names a system."""
    for placement in PLACEMENTS:
        report = describe(predicted(tmp_path, TIE, placement=placement))
        meter = next(section for section in report.sections if isinstance(section, Meter))  # the card's
        remark = next(part.remark for part in meter.parts if part.label == "cached by PyTorch")
        assert ("segments are placed as on" in remark) == ADDRESSES_COUNT, remark


def test_without_a_tie_reserved_is_exact(tmp_path: Path) -> None:
    """Nothing was decided by an address, so no interval is there."""
    found = predicted(tmp_path, NO_TIE)
    assert found.interval_bytes[0] == found.interval_bytes[1]
    if found.placement is not None:
        assert found.placement.decides_nothing


@pytest.mark.skipif(not ADDRESSES_COUNT, reason="from torch 2.12 on no address decides")
@pytest.mark.parametrize(("placement", "total"), [("linux", 240), ("windows", 240), ("windows", 300)])
def test_where_placement_decides_the_verdict_is_that_it_cannot_be_judged(
    tmp_path: Path, placement: str, total: int
) -> None:
    """A card of 240 MiB has room for what Linux needs and none for what the others do; 300 MiB are enough for both."""
    found = predicted(tmp_path, TIE, placement=placement, total_memory=total * MIB)
    assert found.verdict is (Verdict.FITS if total == 300 else Verdict.UNKNOWN)
    if total == 240:
        assert "segments" in found.reason
        assert "the driver" in found.reason


@pytest.mark.parametrize(("placement", "is_above"), [("linux", True), ("windows", False), ("wsl", False)])
def test_the_addresses_of_every_card_tell_its_system(placement: str, is_above: bool) -> None:
    """A reader of a snapshot knows Linux by addresses from 2^44 on; many cards share the address space."""
    code = (
        f"import ullage; ullage.emulate('T4', count=16, placement={placement!r}); import torch\n"
        "for card in range(16): print(torch.empty(1 << 20, device=f'cuda:{card}').data_ptr())"
    )
    ended = client.run([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
    addresses = [int(line) for line in ended.stdout.split()]
    assert len(set(addresses)) == 16
    assert [address >= 1 << 44 for address in addresses] == [is_above] * 16
