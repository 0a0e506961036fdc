"""The table of cards and the look-up by name and size."""

import contextlib
import dataclasses
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.errors import UllageError, UnknownGpuError, UsageError
from ullage.base.units import GIB, MIB, TIB
from ullage.gpu.gpus import DEFAULT_ARCHITECTURE, Gpu, _table, all_gpus, find_gpu

FIGURES = {
    "total_memory_bytes",
    "compute_capability",
    "sm_count",
    "l2_cache_bytes",
    "shared_memory_per_block_optin_bytes",
    "shared_memory_per_sm_bytes",
    "max_threads_per_sm",
    "regs_per_sm",
}
NAMES = [(gpu, name) for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)]


each_gpu = pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)


# --- the table ---


def test_the_table_covers_what_people_train_on() -> None:
    """There are cards of every generation, and each is there once."""
    assert len(all_gpus()) >= 30
    assert {gpu.architecture for gpu in all_gpus()} >= {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"}
    assert all_gpus() is all_gpus()
    assert max(Counter(gpu.name for gpu in all_gpus()).values()) == 1


@pytest.mark.parametrize(
    ("name", "total_memory_bytes", "compute_capability", "sm_count"),
    [
        ("NVIDIA H100 80GB HBM3", 85_017_624_576, (9, 0), 132),
        ("NVIDIA A100-SXM4-80GB", 84_987_740_160, (8, 0), 108),
        ("NVIDIA GeForce RTX 4090", 25_393_692_672, (8, 9), 128),
        ("Tesla T4", 15_828_320_256, (7, 5), 40),
    ],
)
def test_the_reference_cards_are_exact(
    name: str, total_memory_bytes: int, compute_capability: tuple[int, int], sm_count: int
) -> None:
    """The cards of the recorded memory truths have those records' figures to the byte."""
    gpu = find_gpu(name)
    assert gpu.name == gpu.driver_name == name
    assert gpu.total_memory_bytes == total_memory_bytes
    assert gpu.compute_capability == compute_capability
    assert gpu.sm_count == sm_count
    assert "total_memory_bytes" not in gpu.assumed


@each_gpu
def test_every_figure_has_a_source(gpu: Gpu) -> None:
    """Each figure names a source, and a figure is assumed exactly when its source says that none was found."""
    assert sorted(figure for figure, _ in gpu.sources) == sorted(FIGURES)
    for figure in FIGURES:
        source = gpu.source_of(figure)
        assert len(source) > 10
        assert (figure in gpu.assumed) == ("no reading found" in source)
    assert gpu.assumed <= FIGURES


@each_gpu
def test_the_figures_are_of_the_right_size(gpu: Gpu) -> None:
    """The total is somewhat below the nominal size, and every total is whole 64 KiB pages."""
    totals = [gpu.total_memory_bytes, *(n_bytes for n_bytes, _ in gpu.other_totals)]
    assert all(0.88 < total / (gpu.nominal_gib * GIB) < 1 for total in totals)
    assert all(total % (64 << 10) == 0 for total in totals)
    assert len(set(totals)) == len(totals)
    assert 10 <= gpu.sm_count <= 200
    assert MIB <= gpu.l2_cache_bytes <= 128 * MIB
    assert gpu.shared_memory_per_block_optin_bytes <= gpu.shared_memory_per_sm_bytes
    assert gpu.architecture == "sm_{}{}".format(*gpu.compute_capability)


@each_gpu
def test_a_card_survives_pickling(gpu: Gpu) -> None:
    """A card can be sent to another process and be a key of a dict."""
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert len({gpu, gpu}) == 1


def test_a_card_cannot_be_changed() -> None:
    """Cards are shared, so they are frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_gpu("H100").sm_count = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "optin_kib", "per_sm_kib", "threads"),
    [("T4", 64, 64, 1024), ("A100", 163, 164, 2048), ("RTX 3090", 99, 100, 1536), ("H100", 227, 228, 2048)],
)
def test_the_architecture_gives_the_limits_of_an_sm(name: str, optin_kib: int, per_sm_kib: int, threads: int) -> None:
    """The figures of the programming guide's table, for four generations."""
    gpu = find_gpu(name)
    assert gpu.shared_memory_per_block_optin_bytes == optin_kib << 10
    assert gpu.shared_memory_per_sm_bytes == per_sm_kib << 10
    assert gpu.max_threads_per_sm == threads
    assert gpu.regs_per_sm == 65536


@pytest.mark.parametrize(
    ("name", "sm_count", "total_gib"),
    [
        ("A100 1g.10gb", 14, 9.5),
        ("A100 2g.20gb", 28, 19.5),
        ("A100 3g.40gb", 42, 39.25),
        ("A100 4g.40gb", 56, 39.25),
        ("A100 40GB 7g.40gb", 98, 39.25),
        ("H100 1g.10gb", 16, 9.75),
        ("H100 3g.40gb", 60, 39.5),
        ("H200 1g.18gb", 16, 16.0),
        ("A30 4g.24gb", 56, 23.4375),
    ],
)
def test_a_slice_of_a_card_is_a_card(name: str, sm_count: int, total_gib: float) -> None:
    """What nvidia-smi lists of a MIG profile, with the limits of an SM of the whole card."""
    gpu = find_gpu(name)
    whole = find_gpu(gpu.name.partition(" MIG ")[0])
    assert gpu.driver_name == gpu.name
    assert gpu.sm_count == sm_count
    assert gpu.total_memory_bytes == total_gib * GIB
    assert gpu.l2_cache_bytes <= whole.l2_cache_bytes
    assert gpu.compute_capability == whole.compute_capability
    assert not gpu.assumed


# --- other totals ---


@pytest.mark.parametrize(
    ("text", "mib"),
    [("T4@14.56GiB", 14912), ("t4 @ 14.56 GiB", 14912), ("T4@14912MiB", 14912), ("T4@14.74GiB", 15095.0625)],
)
def test_a_card_has_the_total_of_another_driver(text: str, mib: float) -> None:
    """A total as error texts write it finds the reading, to the byte; all else is the card's."""
    gpu = find_gpu(text)
    assert gpu.total_memory_bytes == mib * MIB
    assert dataclasses.replace(gpu, total_memory_bytes=0, sources=()) == dataclasses.replace(
        find_gpu("T4"), total_memory_bytes=0, sources=()
    )
    assert gpu.source_of("total_memory_bytes") in {
        find_gpu("T4").source_of("total_memory_bytes"),
        *(source for _, source in find_gpu("T4").other_totals),
    }


def test_a_total_that_nobody_published_can_be_given() -> None:
    """Another total is taken to the byte, and counts as the user's, not as assumed."""
    gpu = find_gpu("A10@22.5GiB")
    assert gpu.total_memory_bytes == int(22.5 * GIB)
    assert gpu.source_of("total_memory_bytes") == "given by the user"
    assert "total_memory_bytes" in find_gpu("A10").assumed
    assert "total_memory_bytes" not in gpu.assumed


def test_the_own_total_is_assumed_as_before() -> None:
    """To name the total that a card has anyway makes it no reading."""
    assert find_gpu("A10@22.06GiB") == find_gpu("A10")


@pytest.mark.parametrize("text", ["T4@30GiB", "T4@8GiB", "T4@16.1GiB"])
def test_a_total_that_cannot_be_is_answered_with_the_known(text: str) -> None:
    """A total far from the nominal size names those that were read."""
    with pytest.raises(UsageError, match=r"^no T4 has .*; expected one of: 14\.56 GiB, .*14\.74 GiB, "):
        find_gpu(text)


@pytest.mark.parametrize("text", ["T4@", "T4@many", "T4@14.56"])
def test_a_total_needs_a_size(text: str) -> None:
    """What follows the sign has to be a size."""
    with pytest.raises(UsageError, match=r"is not a size; expected a number and a unit"):
        find_gpu(text)


def test_every_other_total_was_read() -> None:
    """A total beside a card's own has a source, of a kind that is no assumption."""
    found = [source for gpu in all_gpus() for _, source in gpu.other_totals]
    assert len(found) >= 40
    assert not [source for source in found if "no reading found" in source or len(source) <= 10]


# --- names ---


@pytest.mark.parametrize(("gpu", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_card_answers_to_its_name_and_aliases(gpu: Gpu, name: str) -> None:
    """Each card is found by its own name and each of its aliases."""
    assert find_gpu(name) is gpu


def test_no_two_cards_share_an_alias() -> None:
    """Names and aliases are unique even without the noise that a look-up ignores."""
    keys = {
        (name.casefold().replace(" ", "").replace("-", "").removeprefix("nvidia"), gpu.name)
        for gpu in all_gpus()
        for name in (gpu.name, *gpu.aliases)
    }
    assert max(Counter(key for key, _ in keys).values()) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("  RTX_4090 ", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("GeForce 4090", "NVIDIA GeForce RTX 4090"),
        ("2080ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("geforce-rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER"),
        ("RTX 4060 Ti (16GB)", "NVIDIA GeForce RTX 4060 Ti 16GB"),
        ("NVIDIA T4", "Tesla T4"),
        ("v100-32gb", "Tesla V100-SXM2-32GB"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("A100 40 GB", "NVIDIA A100-SXM4-40GB"),
        ("h100 sxm", "NVIDIA H100 80GB HBM3"),
        ("6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("nvidia quadro rtx 6000", "Quadro RTX 6000"),
        ("Quadro RTX A6000", "NVIDIA RTX A6000"),
        ("NVIDIA Quadro RTX 8000", "Quadro RTX 8000"),
        ("GeForce RTX 2070", "NVIDIA GeForce RTX 2070"),
        ("4090 laptop", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "NVIDIA GeForce RTX 3050 Laptop GPU"),
        ("rtx 3080 laptop 16gb", "NVIDIA GeForce RTX 3080 Laptop GPU 16GB"),
        ("dgx spark", "NVIDIA GB10"),
        ("H100 96GB", "NVIDIA H100 96GB HBM2e"),
        ("GH200 144GB", "NVIDIA GH200 144G HBM3e"),
        ("A100 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        ("a100-mig-3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"),
        ("A100 3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        ("NVIDIA A100 80GB PCIe MIG 2g.20gb", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"),
        ("H100 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        ("A30 2g.12gb", "NVIDIA A30 MIG 2g.12gb"),
    ],
)
def test_the_look_up_is_forgiving(text: str, name: str) -> None:
    """Case, separators, brand words and a missing RTX do not matter."""
    assert find_gpu(text).name == name


@given(st.data())
def test_noise_in_a_name_changes_nothing(data: st.DataObject) -> None:
    """Any case, and separators anywhere, find the same card."""
    gpu, name = data.draw(st.sampled_from(NAMES))
    noise = st.text(alphabet=" \t-_", max_size=2)
    noisy = "".join(
        data.draw(noise) + (char.upper() if data.draw(st.booleans()) else char.lower()) for char in name
    ) + data.draw(noise)
    assert find_gpu(noisy) is gpu


@given(st.text(max_size=40))
def test_any_text_gives_a_card_or_an_error_of_ours(text: str) -> None:
    """No name makes the look-up fail in a way that the command line does not catch."""
    with contextlib.suppress(UllageError):
        assert isinstance(find_gpu(text), Gpu)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """The whole text: the name, the cards most like it, the list, and the way out by size."""
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu("RTX 4900")
    text = str(caught.value)
    assert text.startswith("no GPU named 'RTX 4900' is known; nearest: RTX 4090, RTX 4080, RTX 4070, ")
    assert text.endswith(". List all with: ullage gpus. Or give a size, such as 24GiB")


@pytest.mark.parametrize("text", ["RTX 4900", "9090", "MI300X", "", "H", "x" * 10_000, "24"])
def test_three_to_five_names_are_suggested(text: str) -> None:
    """However unlike the text, there are 3 to 5 suggestions, each of which is found, in a text that stays short."""
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(text)
    message = str(caught.value)
    names = message.partition("nearest: ")[2].partition(". List all")[0].split(", ")
    assert 3 <= len(names) == len(set(names)) <= 5
    assert all(isinstance(find_gpu(name), Gpu) for name in names)
    assert len(message) < 400


@pytest.mark.parametrize("name", _table()["ambiguous"])
def test_a_name_of_several_cards_is_not_guessed(name: str) -> None:
    """A name that several cards have lists them, and each of the listed finds its own card."""
    choices = _table()["ambiguous"][name]
    assert len({find_gpu(choice).name for choice in choices}) == len(choices) >= 2
    with pytest.raises(UnknownGpuError, match="is the name of more than one GPU; expected one of: ") as caught:
        find_gpu(name.lower())
    assert ", ".join(choices) in str(caught.value)


@each_gpu
def test_what_the_driver_shows_is_never_the_wrong_card(gpu: Gpu) -> None:
    """The driver's name finds the card, or asks which of the cards that bear it is meant."""
    twins = [other for other in all_gpus() if other.driver_name == gpu.driver_name]
    if len(twins) == 1:
        assert find_gpu(gpu.driver_name) is gpu
    else:
        with pytest.raises(UnknownGpuError, match=gpu.short_name):
            find_gpu(gpu.driver_name)


# --- sizes and architectures ---


@pytest.mark.parametrize(
    ("text", "total_memory_bytes", "name"),
    [
        ("24GiB", 24 * GIB, "24 GiB GPU (sm_80)"),
        ("24 GiB", 24 * GIB, "24 GiB GPU (sm_80)"),
        ("24GB", 24 * GIB, "24 GiB GPU (sm_80)"),
        ("16384MiB", 16 * GIB, "16 GiB GPU (sm_80)"),
        ("1.5TiB", 3 * TIB // 2, "1.5 TiB GPU (sm_80)"),
        ("2TiB", 2 * TIB, "2 TiB GPU (sm_80)"),
        ("256MiB", 256 * MIB, "256 MiB GPU (sm_80)"),
        ("16TiB", 16 * TIB, "16 TiB GPU (sm_80)"),
    ],
)
def test_a_size_gives_a_card_of_that_total(text: str, total_memory_bytes: int, name: str) -> None:
    """A size is the total to the byte, GB is read as GiB, and what was not given counts as assumed."""
    gpu = find_gpu(text)
    assert gpu.name == gpu.driver_name == gpu.short_name == name
    assert gpu.total_memory_bytes == total_memory_bytes
    assert gpu.nominal_gib == total_memory_bytes / GIB
    assert gpu.architecture == DEFAULT_ARCHITECTURE == "sm_80"
    assert gpu.assumed == {"compute_capability", "sm_count", "l2_cache_bytes"}
    assert {figure for figure, _ in gpu.sources} == FIGURES
    assert gpu.source_of("total_memory_bytes") == "given by the user"
    assert gpu.source_of("sm_count") == "as A100, which is typical of sm_80"


@pytest.mark.parametrize("arch", ["sm_90", "sm90", "SM_90", "9.0", "90", " 90 "])
def test_the_architecture_of_a_size_can_be_given(arch: str) -> None:
    """Every usual spelling of an architecture works, and it brings its limits along."""
    gpu = find_gpu("24GiB", arch=arch)
    assert gpu.name == "24 GiB GPU (sm_90)"
    assert gpu.compute_capability == (9, 0)
    assert gpu.shared_memory_per_sm_bytes == 228 << 10
    assert gpu.sm_count == 132
    assert gpu.assumed == {"sm_count", "l2_cache_bytes"}
    assert gpu.source_of("compute_capability") == "given by the user"


@pytest.mark.parametrize("capability", _table()["architecture"])
def test_every_architecture_has_a_typical_card(capability: str) -> None:
    """The card that stands in for an architecture is of that architecture."""
    gpu = find_gpu("24GiB", arch=capability)
    assert ".".join(str(part) for part in gpu.compute_capability) == capability


@pytest.mark.parametrize("arch", ["", "sm_", "sm_42", "9", "Hopper", "9.0.0", "sm_90a", "x" * 1000])
def test_an_unknown_architecture_is_answered_with_the_known(arch: str) -> None:
    """The text lists the architectures and the spellings."""
    with pytest.raises(UsageError, match=r"is unknown; expected one of: sm_60, .*sm_121 \(or 9.0 or 90 for sm_90\)$"):
        find_gpu("24GiB", arch=arch)


def test_a_named_card_keeps_its_architecture() -> None:
    """An architecture beside a name is refused, even when it is the card's own."""
    with pytest.raises(UsageError) as caught:
        find_gpu("RTX 4090", arch="sm_89")
    assert str(caught.value) == (
        "RTX 4090 has the architecture sm_89, but 'sm_89' was given; "
        "leave the architecture out, or give a size in place of the name, such as 24GiB"
    )


@pytest.mark.parametrize("text", ["0GiB", "255.9MiB", "12 B", "16.1TiB", "999999999TiB"])
def test_an_impossible_size_is_one_clear_sentence(text: str) -> None:
    """Zero, tiny and absurd sizes are told the range."""
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    assert str(caught.value) == f"a GPU of {text} is not possible; expected 256 MiB to 16 TiB, such as 24GiB"


def test_a_negative_size_is_one_clear_sentence() -> None:
    """A negative size is not taken for a name."""
    with pytest.raises(UsageError, match=r"^'-24GiB' is negative; expected a size of 0 or more bytes"):
        find_gpu("-24GiB")
