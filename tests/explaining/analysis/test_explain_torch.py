"""What real torch records on the emulated card when it runs out, explained: one cause for one situation."""

import json

import pytest

from tests.shared.fresh import answer
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.recorded.snapshot.snapshot import load_snapshot

MIB = 1 << 20
# Each situation in turn on one card of 4 GiB; every one begins with an empty allocator.
SITUATIONS = """
import gc
from ullage.gpu.emulator import emulate
emulate("T4", total_memory_bytes=4 << 30, context_bytes=200 << 20)
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
def limit():
    torch.cuda.set_per_process_memory_fraction(0.5)
    kept = [block(100) for _ in range(40)]
def full():  # on lines of their own: many blocks of one line would be a leak in a loop
    model = block(1500)
    batch = block(1500)
    result = block(1500)
    return model, batch, result
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
    assert explanation.fidelity is not None
    assert explanation.fidelity.is_exact
    evidence = explanation.evidence
    assert evidence["reserved_bytes"] + evidence["free_bytes"] == evidence["room_bytes"]
    json.dumps(explanation.to_json())


def test_a_limit_is_bounded_by_what_was_refused(explained: dict[str, Explanation]) -> None:
    """Half of 4 GiB was allowed: twenty blocks of 100 MiB are in, the next would have been too much."""
    evidence = explained["limit"].evidence
    assert evidence["reserved_bytes"] == 2000 * MIB
    assert evidence["room_bytes"] == 2100 * MIB - 1
    assert evidence["free_bytes"] + evidence["refused_bytes"] == (4096 - 200 - 2000) * MIB
    assert "1.85 GiB were free on the GPU when 100.0 MiB were refused" in explained["limit"].sentence


def test_a_higher_limit_is_the_remedy_against_a_limit(explained: dict[str, Explanation]) -> None:
    last = explained["limit"].remedies[-1]
    assert last.name.startswith("raise the limit")
    assert "were free on the GPU" in last.remark


def test_letting_go_of_what_grows_is_proved_to_help(explained: dict[str, Explanation]) -> None:
    remedies = {remedy.name: remedy for remedy in explained["leak"].remedies}
    cure = remedies["free the 150.0 MiB that each step keeps at the end of the step"]
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


# Recordings of an allocator that gives memory back, or keeps a rest, in ways that the file does not spell out.
EXPANDABLE = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import ullage
ullage.emulate("T4")
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
BEFORE
torch.cuda.memory._record_memory_history()
kept = [block(507) for _ in range(20)]
del kept[3], kept[7], kept[11]  # PyTorch unmaps whole pages of these holes before it gives up
try:
    while True:
        kept.append(block(900))
except torch.OutOfMemoryError:
    torch.cuda.memory._dump_snapshot("FILE")
tell([torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0],
      torch.cuda.max_memory_reserved()])
"""
UNSPLIT = """
import ullage
ullage.emulate("T4")
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
first, second, third = block(2), block(3), block(2)
del second
inside = block(2.25)  # 0.75 MiB of the hole are not split off
del third
torch.cuda.memory._record_memory_history()
MORE
torch.cuda.memory._dump_snapshot("FILE")
tell([torch.cuda.memory_reserved(), torch.cuda.memory_allocated()])
"""


@pytest.mark.parametrize("before", ["", "there = [block(33), block(507), block(41)]; del there[1]"])
def test_pages_that_were_unmapped_in_the_middle_were_not_there_before(tmp_path, before: str) -> None:
    """With expandable segments PyTorch gives back whole pages inside a segment before a request fails."""
    path = tmp_path / "expandable.pickle"
    reserved, allocated, free, peak = answer(EXPANDABLE.replace("BEFORE", before).replace("FILE", str(path)))
    explanation = explain(load_snapshot(path).devices[0])
    evidence = explanation.evidence
    assert explanation.cause is Cause.TRULY_FULL, explanation.sentence
    assert (evidence["reserved_bytes"], evidence["allocated_bytes"]) == (reserved, allocated)
    assert evidence["peak_reserved_bytes"] == peak
    assert evidence["free_bytes"] + evidence.get("refused_bytes", 0) == free
    assert explanation.fidelity is not None
    assert explanation.fidelity.is_exact, explanation.notes


@pytest.mark.parametrize(
    "more",
    [
        "other = block(15.5); del inside; torch.cuda.synchronize()",  # the hole is too small: a new segment
        "other = block(9); del inside; torch.cuda.synchronize()",  # the hole is used from where it begins
    ],
)
def test_a_rest_that_was_not_split_off_before_recording_is_found(tmp_path, more: str) -> None:
    path = tmp_path / "unsplit.pickle"
    reserved, _ = answer(UNSPLIT.replace("MORE", more).replace("FILE", str(path)))
    explanation = explain(load_snapshot(path).devices[0])
    assert explanation.fidelity is not None
    assert explanation.fidelity.is_exact, explanation.notes
    assert explanation.evidence["peak_reserved_bytes"] == reserved


POOLS = """
import ullage
ullage.emulate("1GiB", context_bytes=64 << 20)
import torch
MIB = 1 << 20
def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
torch.cuda.memory._record_memory_history()
pool = torch.cuda.MemPool()
DO
torch.cuda.memory._dump_snapshot("FILE")
tell([torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()])
"""
ASKS = """
try:
    asked = block({size})
except torch.OutOfMemoryError:
    pass
"""
OF_PRIVATE_POOLS = {
    "what a private pool has free": (
        "with torch.cuda.use_mem_pool(pool): inside = [block(120) for _ in range(5)]\n"
        "del inside[1:]; kept = block(200)" + ASKS.format(size=300),
        "160.0 MiB were free on the GPU, and other pools had 480.0 MiB cached",
    ),
    "what the first request of a private pool may not use": (
        "kept = [block(30) for _ in range(20)]; more = block(100); del kept[::2]\n"
        "with torch.cuda.use_mem_pool(pool):" + ASKS.replace("\n", "\n    ").format(size=350),
        "260.0 MiB were free on the GPU, and other pools had 300.0 MiB cached",
    ),
}


@pytest.mark.parametrize("name", OF_PRIVATE_POOLS)
def test_what_lies_in_other_pools_is_told_from_what_is_in_pieces(tmp_path, name: str) -> None:
    do, said = OF_PRIVATE_POOLS[name]
    path = tmp_path / "pools.pickle"
    reserved, peak = answer(POOLS.replace("DO", do).replace("FILE", str(path)))
    explanation = explain(load_snapshot(path).devices[0])
    assert explanation.headline == "FREE MEMORY BELONGS TO ANOTHER STREAM OR POOL"
    assert said in explanation.sentence
    evidence = explanation.evidence
    assert (evidence["reserved_bytes"], evidence["peak_reserved_bytes"]) == (reserved, peak)


def test_a_failure_that_was_caught_is_told_with_how_it_went_on(tmp_path) -> None:
    path = tmp_path / "caught.pickle"
    do = ASKS.format(size=1500) + "kept = [block(100) for _ in range(3)]"
    answer(POOLS.replace("DO", do).replace("FILE", str(path)))
    explanation = explain(load_snapshot(path).devices[0])
    assert explanation.cause is Cause.TRULY_FULL
    assert "continued: 3 later requests succeeded." in explanation.sentence
    assert explanation.remedies[-1].name.startswith("request less at once")


def test_no_batch_is_named_for_a_size_that_makes_no_sense(tmp_path) -> None:
    path = tmp_path / "bogus.pickle"
    answer(POOLS.replace("DO", "kept = block(100)" + ASKS.format(size=1 << 30)).replace("FILE", str(path)))
    explanation = explain(load_snapshot(path).devices[0])
    assert explanation.cause is Cause.BOGUS_SIZE
    assert not any("batch" in remedy.name for remedy in explanation.remedies)
