"""PyTorch's own counters on the emulated card, against the recorded ones: every counter, to the byte."""

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.truth.conftest import Measurements
from tests.truth.record import RECORDS, Card, Record, differences
from tests.truth.runner import ROOT, Runner, RunnerError

pytestmark = pytest.mark.truth
MANIFEST = Path(__file__).with_name("MANIFEST.md")


def test_every_counter_of_every_step_is_the_recorded_one(record: Record, measurements: Measurements) -> None:
    """A workload on an emulated card moves PyTorch's allocator exactly as it did when it was recorded."""
    measured = measurements.of(record.card, record.name)
    assert not (found := differences(record, measured)), f"{len(found)} differ\n" + "\n".join(found)
    assert not measured["unwritten"], f"CUDA functions that answered 'not supported': {measured['unwritten']}"


def measured_as(record: Record) -> dict:
    """What a measurement that equals the record would answer."""
    return {
        "gpu": record.card.gpu,
        "total": record.card.total,
        "cc": list(record.card.cc),
        **{
            fact: getattr(record, fact)
            for fact in ("torch", "cudnn", "param_bytes", "trainable_bytes", "buffer_bytes", "optimizer_bytes", "oom")
        },
        "moments": {moment: dict(counters) for moment, counters in record.moments.items()},
    }


def test_the_comparison_finds_one_byte_in_one_counter(small: Record) -> None:
    """A single byte too many is found, and named by workload, moment, counter, expected and got."""
    measured = measured_as(small)
    assert differences(small, measured) == []
    measured["moments"]["step 2"]["reserved_bytes.all.peak"] += 1
    expected = small.moments["step 2"]["reserved_bytes.all.peak"]
    assert differences(small, measured) == [
        f"mlp_sgd: step 2: reserved_bytes.all.peak: expected {expected}, got {expected + 1} (+1)"
    ]


def test_the_comparison_finds_every_counter_and_fact(small: Record) -> None:
    """No counter and no fact of a record can change without being found."""
    for moment, counters in small.moments.items():
        for counter in counters:
            measured = measured_as(small)
            measured["moments"][moment][counter] -= 1
            assert len(differences(small, measured)) == 1, (moment, counter)
    for fact in measured_as(small):
        if fact != "moments":
            assert len(differences(small, measured_as(small) | {fact: "another"})) == 1, fact


def test_the_comparison_finds_what_is_missing(small: Record) -> None:
    """A counter that PyTorch no longer has, and a step that was not run, are differences."""
    measured = measured_as(small)
    del measured["moments"]["step 1"]["num_ooms"]
    assert differences(small, measured) == ["mlp_sgd: step 1: num_ooms: expected 0, got None"]
    del measured["moments"]["step 3"]
    assert any("moments: expected" in line for line in differences(small, measured))


def test_a_child_that_crashes_is_reported_with_its_signal_and_its_errors() -> None:
    """A workload that takes its process down says how, and the process of the card goes on."""
    code = """
import json, os, signal, sys
from tests.truth.runner import in_child
def crash():
    os.write(2, b"the last words")
    os.kill(os.getpid(), signal.SIGSEGV)
def fail():
    raise ValueError("the reason")
print(json.dumps([in_child(crash), in_child(fail), in_child(lambda: {"is": "well"})]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    crashed, failed, well = json.loads(done.stdout)
    assert crashed == {"error": "the child ended with signal SIGSEGV:\nthe last words"}
    assert failed["error"].startswith("the child ended with code 1:\n")
    assert "ValueError: the reason" in failed["error"]
    assert well == {"is": "well"}


def test_a_card_whose_process_cannot_start_is_reported_with_its_errors() -> None:
    """The reason reaches the reader of the test, not only that there was no answer."""
    card = Card(gpu="no such card", total=1 << 30, cc=(9, 0), alloc_conf="")
    with Runner(card) as runner, pytest.raises(RunnerError, match="no such card"):
        runner.measure("mlp_sgd")


def test_the_records_are_those_of_the_manifest() -> None:
    """Whoever changes the records says in the manifest where the new ones come from."""
    lines = gzip.decompress(RECORDS.read_bytes())
    assert hashlib.sha256(lines).hexdigest() in MANIFEST.read_text()
