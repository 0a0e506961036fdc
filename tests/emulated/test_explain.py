"""What real torch records on the emulated card when it runs out, explained: one cause for one situation."""

import json

import pytest

from ullage.analysis.cause import Cause
from ullage.analysis.explain import Explanation, explain
from ullage.snapshot.snapshot import load_snapshot

from .fresh import answer

MIB = 1 << 20
# Each situation in turn on one card of 4 GiB; every one begins with an empty allocator.
SITUATIONS = """
import gc
from ullage.emulator import emulate
emulate("T4", total_memory_bytes=4 << 30, context_bytes=200 << 20)
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
def limit():
    torch.cuda.set_per_process_memory_fraction(0.5)
    kept = [block(100) for _ in range(40)]
def full():
    kept = [block(100) for _ in range(40)]
def leak():
    weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kept = []
    while True:
        kept.append(block(150))
        temporary = block(300)
        del temporary
        weight.sum().backward()
        optimizer.step()
def fragmented():
    kept, passing = [], []
    for _ in range(30):
        whole = block(120)
        del whole  # the next two share its segment
        kept.append(block(12))
        passing.append(block(108))
    passing.clear()
    return kept, block(1500)
found = {}
for situation in (limit, full, leak, fragmented):
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history()
    with torch.autograd.profiler.record_function("situation"):
        try:
            situation()
        except torch.OutOfMemoryError as error:
            text = str(error)
            torch.cuda.memory._dump_snapshot(f"FOLDER/{situation.__name__}.pickle")
            found[situation.__name__] = text
            del error
    torch.cuda.memory._record_memory_history(None)
tell(found)
"""


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Explanation]:
    folder = tmp_path_factory.mktemp("situations")
    found = answer(SITUATIONS.replace("FOLDER", str(folder)))
    assert set(found) == {"limit", "full", "leak", "fragmented"}, found
    return {name: explain(load_snapshot(folder / f"{name}.pickle").devices[0]) for name in found}


@pytest.mark.parametrize(
    ("situation", "cause"),
    [
        ("limit", Cause.LIMIT),
        ("full", Cause.TRULY_FULL),
        ("leak", Cause.LEAK),
        ("fragmented", Cause.FRAGMENTED),
    ],
)
def test_a_situation_has_its_cause(explained: dict[str, Explanation], situation: str, cause: Cause) -> None:
    explanation = explained[situation]
    assert explanation.cause is cause, explanation.sentence
    assert explanation.departures == 0
    evidence = explanation.evidence
    assert evidence["reserved_bytes"] + evidence["free_bytes"] == evidence["room_bytes"]
    json.dumps(explanation.to_json())


def test_a_limit_is_bounded_by_what_was_refused(explained: dict[str, Explanation]) -> None:
    """Half of 4 GiB was allowed: twenty blocks of 100 MiB are in, the next would have been too much."""
    evidence = explained["limit"].evidence
    assert evidence["reserved_bytes"] == 2000 * MIB
    assert evidence["room_bytes"] == 2100 * MIB - 1
    assert evidence["free_bytes"] + evidence["refused_bytes"] == (4096 - 200 - 2000) * MIB
    assert "1.85 GiB were free on the card when 100.0 MiB were refused" in explained["limit"].sentence


def test_letting_go_of_what_grows_is_proved_to_help(explained: dict[str, Explanation]) -> None:
    remedies = {remedy.name: remedy for remedy in explained["leak"].remedies}
    cure = remedies["free at each step's end the 150.0 MiB that it keeps"]
    assert (cure.proved, cure.fits) == (True, True)
    assert cure.peak_reserved_bytes < 800 * MIB, "what the first two steps keep may be the optimizer's state, and stays"
    assert not remedies["expandable_segments:True"].fits


def test_what_pins_fragmented_memory_is_named(explained: dict[str, Explanation]) -> None:
    """1.5 GiB need thirteen segments of 120 MiB beside what is free on the card: one block of 12 MiB lies in each."""
    explanation = explained["fragmented"]
    assert {block.size_bytes for block in explanation.pinning_set} == {12 * MIB}
    assert len(explanation.pinning_set) == -(-(1500 - (4096 - 200 - 3600)) // 120)
    remedies = {remedy.name: remedy for remedy in explanation.remedies}
    assert remedies["expandable_segments:True"].fits
