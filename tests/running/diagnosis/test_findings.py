"""What follows from what was seen: made-up facts, one judgement after the other."""

from dataclasses import replace

import pytest

from ullage.base.units import GIB, MIB
from ullage.running.diagnosis.diagnosis import Diagnosis, findings_of
from ullage.running.diagnosis.facts import (
    CardFacts,
    CardProcess,
    DiagnosisFinding,
    Driver,
    Host,
    MachineFacts,
    Torch,
    Weight,
)
from ullage.running.diagnosis.variable import visible_indices

TORCH = Torch(version="2.11.0+cu130", cuda="13.0", architectures=("sm_75", "sm_90", "compute_120"), settings="")
CARD = CardFacts(
    index=0,
    name="Tesla T4",
    uuid="GPU-aa",
    total_bytes=15 * GIB,
    used_bytes=400 * MIB,
    compute_capability=(7, 5),
    compute_mode="default",
)
HOST = Host(memory_bytes=64 * GIB, shared_total_bytes=32 * GIB, shared_free_bytes=31 * GIB)
SOUND = MachineFacts(host=HOST, driver=Driver(version="580.1", cuda=(13, 0)), cards=(CARD,), torch=TORCH)


def found(facts: MachineFacts) -> dict[str, DiagnosisFinding]:
    """The findings by their names; each has all that a reader needs."""
    findings = findings_of(facts)
    assert all(one.title and one.seen and one.why and one.cure for one in findings)
    return {finding.name: finding for finding in findings}


def with_variables(facts: MachineFacts = SOUND, /, *, read: str = "", **variables: str) -> MachineFacts:
    """A sound machine with variables, and the text that its allocator says it has read."""
    assert facts.torch is not None
    return replace(facts, environment=variables, torch=replace(facts.torch, settings=read))


def with_card(**changes: object) -> MachineFacts:
    return replace(SOUND, cards=(replace(CARD, **changes),))  # type: ignore[arg-type]


def process(pid: int, **changes: object) -> CardProcess:
    return CardProcess(**{"pid": pid, "name": "python", "used_bytes": 3 * GIB} | changes)  # type: ignore[arg-type]


def test_a_sound_machine_has_no_finding() -> None:
    """Nothing is said where nothing is wrong: the exit code is 0."""
    assert findings_of(SOUND) == ()
    assert Diagnosis(facts=SOUND, findings=()).exit_code == 0
    assert (
        findings_of(with_variables(read="expandable_segments:True", PYTORCH_ALLOC_CONF="expandable_segments:True"))
        == ()
    )


def test_nothing_at_all_has_no_finding() -> None:
    """No torch, no driver, no card, nothing that could be read."""
    assert findings_of(MachineFacts()) == ()


def test_only_a_problem_makes_the_exit_code_1() -> None:
    """Problems come first; what is only to know leaves the exit code at 0."""
    note = with_variables(CUDA_LAUNCH_BLOCKING="1")
    assert Diagnosis(facts=note, findings=findings_of(note)).exit_code == 0
    both = with_variables(CUDA_LAUNCH_BLOCKING="1", CUDA_MODULE_LOADING="EAGER")
    assert [one.weight for one in findings_of(both)] == [Weight.PROBLEM, Weight.NOTE]
    assert Diagnosis(facts=both, findings=findings_of(both)).exit_code == 1


# ---- the allocator's settings


def test_two_variables_that_differ_are_a_problem_and_the_loser_is_named() -> None:
    facts = with_variables(
        read="max_split_size_mb:64", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64", PYTORCH_ALLOC_CONF="backend:native"
    )
    finding = found(facts)["settings-ignored"]
    assert finding.title == "PYTORCH_ALLOC_CONF is not in force"
    assert "PyTorch reads only PYTORCH_CUDA_ALLOC_CONF" in finding.why
    same = with_variables(
        read="max_split_size_mb:64",
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64",
        PYTORCH_ALLOC_CONF="max_split_size_mb: 64,",
    )
    assert found(same) == {}


def test_an_empty_variable_hides_another() -> None:
    """As torch 2.11 has it: the first that is set counts, even empty."""
    finding = found(with_variables(PYTORCH_CUDA_ALLOC_CONF="", PYTORCH_ALLOC_CONF="backend:native"))["settings-ignored"]
    assert "PyTorch reads only PYTORCH_CUDA_ALLOC_CONF" in finding.why
    assert "no setting is in force" in finding.seen


def test_a_variable_that_this_version_does_not_read_is_a_problem() -> None:
    """torch 2.8 knows PYTORCH_CUDA_ALLOC_CONF alone; the cure names that."""
    facts = replace(SOUND, torch=replace(TORCH, version="2.8.0+cu128", cuda="12.8"))
    finding = found(with_variables(facts, PYTORCH_ALLOC_CONF="expandable_segments:True"))["settings-ignored"]
    assert finding.why == "torch 2.8.0+cu128 does not read PYTORCH_ALLOC_CONF."
    assert finding.cure == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize(
    "name",
    [
        *("PYTORCH_CUDA_ALLOCATOR_CONF", "PYTORCH_CUDA_ALLOC_CONFIG", "pytorch_alloc_conf"),
        *("PYTORCH_CUDA_ALLOC_CON", "PYTORCH_CUDA_ALOC_CONF", "PYTROCH_CUDA_ALLOC_CONF"),
    ],
)
def test_a_misspelt_variable_is_a_problem(name: str) -> None:
    assert name in found(with_variables(**{name: "backend:native"}))["settings-misspelt"].title


def test_what_torch_refuses_is_told_in_its_words() -> None:
    torch = replace(TORCH, settings=None, settings_error="Unrecognized key 'foo' in Accelerator allocator config.")
    finding = found(replace(SOUND, torch=torch, environment={"PYTORCH_ALLOC_CONF": "foo:1"}))["settings-refused"]
    assert finding.seen == "PYTORCH_ALLOC_CONF=foo:1: Unrecognized key 'foo' in Accelerator allocator config."


def test_a_word_of_torch_that_says_nothing_gives_way_to_the_grammar() -> None:
    torch = replace(TORCH, settings=None, settings_error="stoull")
    facts = replace(SOUND, torch=torch, environment={"PYTORCH_ALLOC_CONF": f"max_split_size_mb:{10**20}"})
    assert "expected a whole number of MiB" in found(facts)["settings-refused"].seen


def test_without_torch_the_grammar_judges() -> None:
    facts = replace(SOUND, torch=None, environment={"PYTORCH_ALLOC_CONF": "expandable_segments:true"})
    assert "expected True or False" in found(facts)["settings-refused"].seen


def test_settings_that_were_changed_in_this_process_are_told() -> None:
    """A variable that is set after torch has read it does nothing; so does one that a program overrules."""
    facts = replace(SOUND, torch=replace(TORCH, is_here=True), environment={"PYTORCH_ALLOC_CONF": "backend:native"})
    assert "The allocator reads the variable once" in found(facts)["settings-ignored"].why


@pytest.mark.parametrize(
    ("text", "name", "word"),
    [
        ("expandable_segments:True,max_split_size_mb:64", "option-without-effect", "max_split_size_mb"),
        ("garbage_collection_threshold:0.8", "option-without-effect", "garbage_collection_threshold"),
        (
            "expandable_segments:True,garbage_collection_threshold:0.8,per_process_memory_fraction:0.9",
            "option-without-effect",
            "garbage_collection_threshold",
        ),
        ("per_process_memory_fraction:0.5", "fraction", "50%"),
        ("backend:cudaMallocAsync", "backend-async", "CUDA's own allocator"),
    ],
)
def test_an_option_without_effect_is_to_know(text: str, name: str, word: str) -> None:
    finding = found(with_variables(read=text, PYTORCH_ALLOC_CONF=text))[name]
    assert word in finding.title
    assert finding.weight is Weight.NOTE


def test_options_beside_another_allocator_are_a_problem() -> None:
    text = "backend:cudaMallocAsync,expandable_segments:True"
    finding = found(with_variables(read=text, PYTORCH_ALLOC_CONF=text))["backend-async"]
    assert finding.weight is Weight.PROBLEM


def test_expandable_segments_need_linux_and_leave_nccls_registration_out() -> None:
    text = "expandable_segments:True"
    facts = with_variables(read=text, PYTORCH_ALLOC_CONF=text, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
    assert set(found(facts)) == {"nccl-registration"}
    assert "option-without-effect" in found(replace(facts, host=replace(HOST, system="Windows")))


# ---- other variables


@pytest.mark.parametrize(
    ("text", "shown", "name"),
    [
        ("0", [0], None),
        ("1,0", [1, 0], None),
        ("1gpu", [1], None),
        ("GPU-b", [1], None),
        ("", [], "no-card-visible"),
        ("-1", [], "no-card-visible"),
        ("none", [], "no-card-visible"),
        ("0,0", [], "no-card-visible"),
        ("0,2", [0], "cards-cut-off"),
        ("0,,1", [0], "cards-cut-off"),
        ("0,-1,1", [0], "cards-cut-off"),
    ],
)
def test_visible_cards_are_read_as_cuda_does(text: str, shown: list[int], name: str | None) -> None:
    cards = (CARD, replace(CARD, index=1, uuid="GPU-bb"))
    facts = replace(with_variables(CUDA_VISIBLE_DEVICES=text), cards=cards)
    assert visible_indices(text, facts)[0] == shown
    assert set(found(facts)) == ({name} if name else set())


def test_cards_are_counted_only_where_they_are_known() -> None:
    """An emulated card, or no driver, says nothing of the numbers that there are."""
    facts = with_variables(CUDA_VISIBLE_DEVICES="3")
    assert set(found(facts)) == {"no-card-visible"}
    assert found(replace(facts, is_emulated=True)) == {}
    assert set(found(replace(facts, cards=(), driver=None))) == {"no-driver"}


def test_without_a_driver_a_build_for_cuda_is_told_of() -> None:
    """To know, not a problem: there may be no card at all."""
    facts = replace(SOUND, cards=(), driver=None)
    assert found(facts)["no-driver"].weight is Weight.NOTE
    assert found(replace(facts, torch=replace(TORCH, cuda=None, architectures=()))) == {}
    assert found(replace(facts, is_emulated=True)) == {}


def test_cards_of_several_kinds_are_numbered_by_speed() -> None:
    cards = (CARD, replace(CARD, index=1, uuid="GPU-bb", name="NVIDIA H100", compute_capability=(9, 0)))
    facts = replace(with_variables(CUDA_VISIBLE_DEVICES="0"), cards=cards)
    assert set(found(facts)) == {"card-order"}
    ordered = replace(facts, environment=facts.environment | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert found(ordered) == {}


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "no-caching"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "true", "no-caching-unread"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0", None),
        ("CUDA_LAUNCH_BLOCKING", "1", "launch-blocking"),
        ("CUDA_LAUNCH_BLOCKING", "0", None),
        ("CUDA_MODULE_LOADING", "EAGER", "eager-loading"),
        ("CUDA_MODULE_LOADING", "LAZY", None),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", None),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8", None),
        ("CUBLAS_WORKSPACE_CONFIG", ":65536:2", "workspace-large"),
        ("CUBLAS_WORKSPACE_CONFIG", "4096:8", "workspace-unread"),
        ("NCCL_BUFFSIZE", "4194304", None),
        ("NCCL_BUFFSIZE", "16777216", "nccl-buffers"),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "record-streams"),
    ],
)
def test_a_variable_is_judged_by_its_value(name: str, text: str, finding: str | None) -> None:
    assert set(found(with_variables(**{name: text}))) == ({finding} if finding else set())


def test_a_workspace_is_told_in_bytes() -> None:
    assert "128.1 MiB" in found(with_variables(CUBLAS_WORKSPACE_CONFIG=":65536:2:16:8"))["workspace-large"].title


# ---- cards


@pytest.mark.parametrize(
    ("cuda", "driver", "name"),
    [
        ("13.0", (13, 0), None),
        ("12.8", (13, 0), None),
        ("13.2", (13, 0), "driver-older"),
        ("13.0", (12, 4), "driver-too-old"),
    ],
)
def test_a_driver_runs_what_is_not_newer(cuda: str, driver: tuple[int, int], name: str | None) -> None:
    facts = replace(SOUND, torch=replace(TORCH, cuda=cuda), driver=Driver(version="1", cuda=driver))
    assert set(found(facts)) == ({name} if name else set())


def test_a_build_needs_kernels_for_the_card() -> None:
    """Code for a generation runs on its later cards, and PTX on later generations."""
    assert "no-kernels" in found(with_card(compute_capability=(7, 0)))
    assert "no-kernels" in found(with_card(compute_capability=(8, 9)))
    assert found(with_card(compute_capability=(12, 1))) == {}


def test_a_build_without_cuda_is_a_problem_where_there_is_a_card() -> None:
    cpu = Torch(version="2.11.0+cpu")
    assert set(found(replace(SOUND, torch=cpu))) == {"torch-for-cpu"}
    assert found(replace(SOUND, torch=cpu, cards=(), driver=None)) == {}


def test_a_torch_that_cannot_be_imported_is_told_with_its_error() -> None:
    broken = Torch(version="2.11.0", error="ImportError: libcudnn.so.9")
    assert "libcudnn.so.9" in found(replace(SOUND, torch=broken))["torch-fails"].seen


@pytest.mark.parametrize(("mode", "name"), [("prohibited", "mode-prohibited"), ("exclusive", "mode-exclusive")])
def test_a_compute_mode_is_told(mode: str, name: str) -> None:
    assert set(found(with_card(compute_mode=mode))) == {name}


def test_others_on_a_card_weigh_by_their_share() -> None:
    """A tenth of the card is a problem; a desktop's window is not."""
    large = found(with_card(used_bytes=6 * GIB, processes=(process(7), process(8, is_ours=False))))["others"]
    assert "3.00 GiB by process 7 (python), 3.00 GiB by process 8 (python, not yours)" in large.seen
    assert large.weight is Weight.PROBLEM
    small = found(with_card(processes=(process(7, used_bytes=MIB),)))["others"]
    assert small.weight is Weight.NOTE


def test_memory_of_processes_that_cannot_be_seen_is_told() -> None:
    """In a container the driver counts what others use and does not name them."""
    unseen = found(with_card(used_bytes=9 * GIB))["others"]
    assert "no process is visible" in unseen.seen
    assert "other containers" in unseen.why
    partly = found(with_card(used_bytes=9 * GIB, processes=(process(7),)))["others"]
    assert "6.00 GiB more by processes that are not visible" in partly.seen
    unknown = found(with_card(used_bytes=9 * GIB, processes=(process(7, used_bytes=None),)))["others"]
    assert "an unknown amount by process 7" in unknown.seen


def test_ghosts_are_told_with_the_line_that_ends_them() -> None:
    """Only one's own: others' processes are theirs to end."""
    ghosts = found(with_card(processes=(process(7, is_orphan=True), process(9, is_orphan=True, is_ours=False))))
    assert ghosts["ghosts"].cure.endswith("kill 7")
    assert "9" not in ghosts["ghosts"].seen


def test_workers_of_a_loader_on_the_card_are_told() -> None:
    found_there = found(with_card(processes=(process(7, name="pt_data_worker", is_worker=True),)))
    assert "process 7" in found_there["workers-on-card"].seen
    assert "ghosts" not in found_there


def ranks(*, on_card_0: int, count: int = 4) -> MachineFacts:
    """`count` ranks, each on its own card, and the first of them with a context on card 0 too."""
    cards = []
    for index in range(count):
        processes = [process(100 + index)]
        if index == 0:
            processes += [process(100 + rank, used_bytes=500 * MIB) for rank in range(1, on_card_0 + 1)]
        cards.append(replace(CARD, index=index, uuid=f"GPU-{index}", processes=tuple(processes)))
    return replace(SOUND, cards=tuple(cards))


def test_contexts_of_other_ranks_on_card_0_are_counted() -> None:
    finding = found(ranks(on_card_0=3))["strays"]
    assert finding.title == "3 processes of other GPUs hold 1.46 GiB of GPU 0 (Tesla T4)"
    assert "strays" in found(ranks(on_card_0=1))
    assert "strays" not in found(ranks(on_card_0=0))


def test_one_process_on_several_cards_is_no_stray() -> None:
    both = tuple(replace(CARD, index=index, processes=(process(7),)) for index in range(2))
    assert "strays" not in found(replace(SOUND, cards=both))


# ---- the machine


@pytest.mark.parametrize(
    ("total", "free", "name"),
    [
        (64 * MIB, 64 * MIB, "shared-memory-small"),
        (8 * GIB, 100 * MIB, "shared-memory-full"),
        (8 * GIB, GIB, None),
        (None, None, None),
    ],
)
def test_shared_memory_is_judged_by_what_is_free(total: int | None, free: int | None, name: str | None) -> None:
    facts = replace(SOUND, host=replace(HOST, shared_total_bytes=total, shared_free_bytes=free))
    assert set(found(facts)) == ({name} if name else set())


def test_a_container_near_its_limit_is_a_problem() -> None:
    full = replace(SOUND, host=replace(HOST, limit_bytes=8 * GIB, used_bytes=15 * GIB // 2))
    assert "7.50 GiB of 8.00 GiB" in found(full)["container-full"].seen
    assert found(replace(SOUND, host=replace(HOST, limit_bytes=8 * GIB, used_bytes=GIB))) == {}


def test_pinned_memory_is_judged_by_the_container() -> None:
    torch = replace(TORCH, pinned_bytes=6 * GIB)
    assert found(replace(SOUND, torch=torch)) == {}
    limited = replace(SOUND, torch=torch, host=replace(HOST, limit_bytes=8 * GIB))
    assert found(limited)["pinned"].weight is Weight.PROBLEM


def test_windows_may_spill() -> None:
    assert set(found(replace(SOUND, host=replace(HOST, is_wsl=True)))) == {"spill"}
