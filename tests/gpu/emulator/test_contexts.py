"""The profiles of CUDA contexts: what published readings make, and which card has which."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from ullage.base.units import GIB, MIB
from ullage.gpu.emulator.profile import Profile, profile_of
from ullage.gpu.gpus import Gpu, all_gpus, find_gpu

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import contexts  # noqa: E402
import contexts_page  # noqa: E402
import read_contexts  # noqa: E402
from stale_pages import without_stamp  # noqa: E402

FOUND = list(contexts.readings())
KNOWN = contexts.populations(FOUND)
FACTS = [json.loads(line) for line in contexts.READINGS.read_text().splitlines()]
TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 14.74 GiB "
    "of which 1.20 GiB is free. {holders} Of the allocated memory 12.10 GiB is allocated by PyTorch, and 1.00 GiB is "
    "reserved by PyTorch but unallocated."
)


def test_the_profiles_are_what_the_readings_make() -> None:
    """The committed files are those that the command writes, and there are no others but the assumption."""
    texts = read_contexts.profile_texts(KNOWN)
    committed = {path.name: path.read_text() for path in read_contexts.PROFILES.glob("*.toml")}
    assert committed.pop("assumed.toml")
    assert committed == texts


def test_the_page_is_what_the_command_writes() -> None:
    """docs/contexts.md was written from these readings."""
    assert without_stamp((ROOT / "docs" / "contexts.md").read_text()) == contexts_page.page(FOUND, KNOWN)


def test_the_facts_are_facts_alone() -> None:
    """Figures, names and where they stand; sizes that can be, and no text of anybody's."""
    assert len(FACTS) >= 200
    assert len({json.dumps(fact, sort_keys=True) for fact in FACTS}) == len(FACTS)
    for fact in FACTS:
        assert fact["source"].startswith(("https://", "file ", "fitcheck-llm"))
        assert all(find_gpu(name).name == name for name in fact["cards"])
        assert fact["told_by"] in {"name", "total"}
        assert max(len(text) for text in fact.values() if isinstance(text, str)) < 100
        if "in_use_bytes" in fact:
            held = fact["allocated_bytes"] + fact["unallocated_bytes"]
            assert held < fact["in_use_bytes"] <= fact["total_bytes"] < 200 * GIB


def totals_of(card: Gpu) -> list[int]:
    own = [] if "total_memory_bytes" in card.assumed else [card.total_memory_bytes]
    return [*own, *(n_bytes for n_bytes, _ in card.other_totals)]


def test_a_total_tells_one_chip() -> None:
    """Where a text did not name its card, no reading of another chip in the table has that total."""
    for fact in FACTS:
        if fact["told_by"] != "total":
            continue
        chips = {contexts.chip_of(find_gpu(name)) for name in fact["cards"]}
        others = {
            card.name
            for card in all_gpus()
            if contexts.chip_of(card) not in chips and contexts.SLICE not in card.name
            for total in totals_of(card)
            if abs(total - fact["total_bytes"]) <= GIB // 200
        }
        assert not others, fact


def test_twenty_cards_have_an_interval_of_use() -> None:
    """Twenty whole cards have less than 150 MiB between low and high, from readings of their chip."""
    narrow = {
        card.name
        for card in all_gpus()
        if contexts.is_known(card)
        and "published readings" in profile_of(card).source
        and profile_of(card).context_high_bytes - profile_of(card).context_low_bytes < 150 * MIB
    }
    assert len(narrow) >= 20
    assert {"Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"} <= narrow


def test_the_rule_holds_for_chips_that_did_not_make_it() -> None:
    """Of the readings of a chip that was left out, most are inside the interval that the others make."""
    inside = sum(contexts.without(KNOWN, population).covers(population) for population in KNOWN)
    assert inside >= 0.8 * sum(len(population.kept) for population in KNOWN)


OWN = [population for population in KNOWN if len(population.kept) >= contexts.FEWEST]


@pytest.mark.parametrize("population", OWN, ids=lambda population: "_".join(map(str, population.chip)))
def test_an_interval_is_in_order_and_among_the_readings(population: contexts.Population) -> None:
    """Low, expected and high are in order and between the least and the most that was read."""
    low, expected, high = population.interval_mib()
    sizes = [reading.mib for reading in population.kept]
    assert min(sizes) - 12 <= low <= expected <= high <= max(sizes) + 12


def test_the_measured_context_of_a_t4_is_expected() -> None:
    """Where a publisher measured the context itself after training steps, that is what is expected."""
    profile = profile_of(find_gpu("T4"))
    assert profile.context_bytes == 141 * MIB
    assert profile.context_low_bytes < 140 * MIB < profile.context_high_bytes


def test_a_card_without_readings_follows_the_rule() -> None:
    """The rule's text says that it is one, and its interval is around it; a larger chip takes more."""
    small, large = profile_of(find_gpu("RTX 3060")), profile_of(find_gpu("B200"))
    for profile in (small, large):
        assert profile.source.startswith("estimated from the chip's number of threads")
        assert profile.context_low_bytes < profile.context_bytes < profile.context_high_bytes
    assert small.context_bytes < large.context_bytes
    slice_, whole = profile_of(find_gpu("A100 1g.10gb")), profile_of(find_gpu("A100"))
    assert slice_.context_bytes < whole.context_bytes


@pytest.mark.parametrize("name", ["24GiB", "B300"])
def test_a_card_whose_chip_is_not_known_has_the_assumption(name: str) -> None:
    """A size, and a card whose number of SMs is assumed, have the wide interval that says so."""
    profile = profile_of(find_gpu(name))
    assert profile.source.startswith("assumed, because")
    assert profile.context_high_bytes - profile.context_low_bytes == 600 * MIB


def test_another_total_changes_no_context() -> None:
    """The context is the chip's, whatever a driver keeps."""
    assert profile_of(find_gpu("T4@14.56GiB")) == profile_of(find_gpu("T4"))
    assert isinstance(profile_of(find_gpu("T4")), Profile)


@pytest.mark.parametrize(
    ("holders", "mib"),
    [
        ("Including non-PyTorch memory, this process has 13.50 GiB memory in use.", 410),
        ("Process 123 has 13.50 GiB memory in use.", 410),
        ("Process 9 has 1.00 GiB memory in use. Process 123 has 13.50 GiB memory in use.", None),
    ],
)
def test_the_facts_of_a_text(holders: str, mib: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text gives the sizes; one of several processes that does not say which is its own gives nothing."""
    (tmp_path / "thread.txt").write_text(TEXT.format(holders=holders))
    read_contexts.print_facts(tmp_path, ["T4"])
    printed = capsys.readouterr().out
    if mib is None:
        assert not printed
        return
    fact = json.loads(printed)
    assert fact["cards"] == ["Tesla T4"]
    assert fact["left_out"] is None
    rest = fact["in_use_bytes"] - fact["allocated_bytes"] - fact["unallocated_bytes"]
    assert round(rest / MIB) == mib


def test_a_text_of_a_rank_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks have NCCL's buffers too: the fact says so."""
    text = TEXT.format(holders="Including non-PyTorch memory, this process has 13.50 GiB memory in use.")
    (tmp_path / "log.txt").write_text(f"[rank0]: {text}")
    read_contexts.print_facts(tmp_path, ["T4"])
    assert json.loads(capsys.readouterr().out)["left_out"] == "several ranks"


def test_rounding_is_carried() -> None:
    """Half of the last digit: 5.12 MiB for GiB, and of MiB next to nothing."""
    assert contexts.doubt_bytes(13 * GIB) == 0.005 * GIB
    assert contexts.doubt_bytes(13 * MIB) == 0.005 * MIB
    assert contexts.doubt_bytes(512) == 0


def test_the_command_writes_profiles_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes both anew from the facts."""
    shutil.copy(read_contexts.PROFILES / "assumed.toml", tmp_path)
    monkeypatch.setattr(read_contexts, "PROFILES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["read_contexts.py", "--write", str(tmp_path / "contexts.md")])
    assert read_contexts.main() == 0
    assert (tmp_path / "contexts.md").read_text() == contexts_page.page(FOUND, KNOWN)
    assert (tmp_path / "rule.toml").exists()
