"""The grammar of PYTORCH_ALLOC_CONF: what PyTorch reads is read, what it refuses is refused in one sentence."""

import re
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.base.units import GIB, MIB
from ullage.predicting.fitting.fit import CHANGES
from ullage.predicting.prediction.changed_request import changed, makes_a_difference
from ullage.predicting.prediction.request import Request
from ullage.recorded.settings import (
    SEMANTICS,
    UNLIMITED,
    VARIABLES,
    Settings,
    SettingsError,
    line_to_paste,
    parse_settings,
    semantics_of,
    settings_in_force,
    with_options,
)


def test_defaults_are_those_of_an_empty_text() -> None:
    assert parse_settings("") == Settings()
    assert parse_settings(" \t") == Settings()


def test_every_option_of_device_memory() -> None:
    text = (
        "max_split_size_mb:128, max_non_split_rounding_mb : 64,garbage_collection_threshold:0.6,"
        "large_segment_size_mb:48,expandable_segments:True,per_process_memory_fraction:0.5,roundup_power2_divisions:8,backend:native"
    )
    settings = parse_settings(text)
    assert settings.max_split_bytes == 128 * MIB
    assert settings.max_non_split_rounding_bytes == 64 * MIB
    assert settings.garbage_collection_threshold == 0.6
    assert settings.large_segment_bytes == 48 * MIB
    assert settings.expandable_segments
    assert settings.per_process_memory_fraction == 0.5
    assert settings.roundup_divisions == (8,) * 16


def test_the_rounding_limit_follows_the_large_segment() -> None:
    assert parse_settings("large_segment_size_mb:64").max_non_split_rounding_bytes == 64 * MIB


def test_a_list_of_divisions() -> None:
    """Below the first key its value; a key for its own power of two alone; > for what is above the last."""
    assert parse_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_divisions == (
        *((1,) * 9),
        *(2, 4),
        *((8,) * 5),
    )
    assert parse_settings("roundup_power2_divisions:[2:4,16:8]").roundup_divisions == (4, 4, 0, 0, 8, *((0,) * 11))


def test_what_changes_at_run_time() -> None:
    """Three options go back to their defaults where they are not named; the others stay."""
    before = parse_settings("max_split_size_mb:64,expandable_segments:True,large_segment_size_mb:32")
    after = parse_settings("garbage_collection_threshold:0.5", before=before)
    assert after.max_split_bytes == UNLIMITED
    assert after.expandable_segments
    assert after.large_segment_bytes == 32 * MIB


@pytest.mark.parametrize(
    ("text", "reserve"),
    [("0.5", 50 * GIB), ("40G", 40 * GIB), ("1.5g", 3 * GIB // 2)],
)
def test_address_space_is_a_fraction_or_a_size(text: str, reserve: int) -> None:
    settings = parse_settings(f"expandable_segments_reserve:{text}", semantics="2.15")
    assert settings.reserve_bytes(100 * GIB) == reserve


def test_address_space_of_a_class_of_streams_changes_nothing_that_is_replayed() -> None:
    """No recording says which class a stream has; the text is checked as PyTorch checks it."""
    option = "expandable_segments_reserve_by_class"
    for text in ("[]", "[loader:0.5]", "[loader:0.5,prefetch:40G]"):
        settings = parse_settings(f"{option}:{text},max_split_size_mb:64", semantics="2.15")
        assert settings == parse_settings("max_split_size_mb:64", semantics="2.15")
    for text, said in (("0.5", "instead of '['"), ("[a]", "instead of ':'"), ("[a:0]", "a fraction such as 0.5")):
        with pytest.raises(SettingsError, match=re.escape(said)):
            parse_settings(f"{option}:{text}", semantics="2.15")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense:1", "'nonsense' is not an option of PyTorch's allocator; expected one of backend, "),
        ("throw_on_cudamalloc_oom:True", "is not an option of PyTorch's allocator before torch 2.12"),
        ("max_split_size_mb", "the settings end before ':' of max_split_size_mb"),
        ("max_split_size_mb:", "the settings end before the value of max_split_size_mb"),
        ("max_split_size_mb=64", "'max_split_size_mb=64' is not an option"),
        ("max_split_size_mb:10", "max_split_size_mb:10 is too small; PyTorch allows values from 20 on"),
        ("max_split_size_mb:32,large_segment_size_mb:48", "PyTorch allows values from 48 on"),
        ("max_non_split_rounding_mb:4", "max_non_split_rounding_mb:4 is too small"),
        ("max_split_size_mb:-1", "max_split_size_mb:-1 is not allowed; expected a whole number of MiB"),
        (
            "large_segment_size_mb:10",
            "large_segment_size_mb:10 is not allowed; expected a whole number of MiB above 10",
        ),
        ("garbage_collection_threshold:1", "expected a number above 0 and below 1"),
        ("garbage_collection_threshold:x", "garbage_collection_threshold:x is not allowed"),
        ("per_process_memory_fraction:1.5", "expected a number from 0 to 1"),
        ("expandable_segments:true", "expandable_segments:true is not allowed; expected True or False (case matters)"),
        ("backend:cuda", "expected native or cudaMallocAsync"),
        ("roundup_power2_divisions:3", "expected a power of two"),
        ("roundup_power2_divisions:0", "expected a power of two"),
        ("roundup_power2_divisions:[3:4]", "expected sizes that are a power of two"),
        ("roundup_power2_divisions:[64:3]", "[64:3] is not allowed; expected divisions that are a power of two"),
        ("roundup_power2_divisions:[4:4", "the settings end before"),
        ("pinned_num_register_threads:6", "expected a power of two up to 128"),
        ("expandable_segments:True;max_split_size_mb:64", "expected True or False"),
    ],
)
def test_what_pytorch_refuses_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_older_variable_wins_as_a_whole() -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert settings_in_force(both) == ("max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF")
    between = {"PYTORCH_ALLOC_CONF": "a:b", "PYTORCH_HIP_ALLOC_CONF": ""}
    assert settings_in_force(between) == ("", "PYTORCH_HIP_ALLOC_CONF")
    assert settings_in_force({"PYTORCH_ALLOC_CONF": "a:b"}) == ("a:b", "PYTORCH_ALLOC_CONF")
    assert settings_in_force({}) == ("", None)
    assert settings_in_force(between, "2.8") == ("", None)
    assert settings_in_force(both, "2.8") == ("max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF")


EACH_OPTION = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "large_segment_size_mb:32",
    "max_non_split_rounding_mb:256",
    "garbage_collection_threshold:0.8",
    "per_process_memory_fraction:0.95",
    "roundup_power2_divisions:[64:1,>:8]",
    "roundup_power2_divisions:4",
    "throw_on_cudamalloc_oom:True",
    "expandable_segments_reserve:40G",
    "pinned_use_background_threads:True",
)


def test_a_line_to_paste_gives_exactly_its_settings_whatever_the_shell_had() -> None:
    """Every pair of options, in a real shell in which all three variables are set."""
    texts = [with_options(first, second) for first in EACH_OPTION for second in EACH_OPTION] + [""]
    script = ""
    for text in texts:
        before = "; ".join(f"export {name}=backend:cudaMallocAsync" for name in VARIABLES)
        show = "; ".join(f'echo "{name}=${{{name}-none}}"' for name in VARIABLES)
        script += f"{before}; {line_to_paste(text)}; {show}\n"
    lines = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(VARIABLES) * len(texts)
    for at, text in enumerate(texts):
        shown = dict(line.split("=", 1) for line in lines[at * len(VARIABLES) : (at + 1) * len(VARIABLES)])
        environment = {name: value for name, value in shown.items() if value != "none"}
        for version in SEMANTICS:
            assert settings_in_force(environment, version)[0] == text
        assert parse_settings(settings_in_force(environment)[0], semantics="2.15") == parse_settings(
            text, semantics="2.15"
        )


def test_options_join_those_that_are_there_and_take_the_place_of_their_own() -> None:
    assert with_options("", "max_split_size_mb:64") == "max_split_size_mb:64"
    text = "pinned_use_background_threads:True, roundup_power2_divisions:[64:1,>:8]"
    assert with_options(text, "roundup_power2_divisions:4,max_split_size_mb:64") == (
        "pinned_use_background_threads:True,roundup_power2_divisions:4,max_split_size_mb:64"
    )


@pytest.mark.parametrize(("given", "text"), [(None, "max_split_size_mb:64"), ("", ""), ("backend:native", None)])
def test_a_change_is_tried_on_top_of_what_pytorch_reads(
    monkeypatch: pytest.MonkeyPatch, given: str | None, text: str | None
) -> None:
    """Of the variables that are set the one that wins; --alloc-conf takes the place of all, also where it is empty."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    request = Request.of("train.py", gpu="T4", alloc_conf=given)
    expandable, no_split = CHANGES[:2]  # each a change and its setting
    before = given if text is None else text
    wanted = f"{before},expandable_segments:True" if before else "expandable_segments:True"
    assert changed(request, *expandable).options["alloc_conf"] == wanted
    assert makes_a_difference(request, *no_split) is ("max_split" not in (before or ""))


@pytest.mark.parametrize(
    ("option", "since"),
    [
        ("large_segment_size_mb:32", "2.11"),
        ("throw_on_cudamalloc_oom:True", "2.12"),
        ("pinned_max_cached_size_mb:64", "2.13"),
        ("expandable_segments_reserve:0.5", "2.15"),
    ],
)
def test_an_option_is_known_from_its_version_on(option: str, since: str) -> None:
    at = SEMANTICS.index(since)
    for semantics in SEMANTICS[at:]:
        parse_settings(option, semantics=semantics)
    for semantics in SEMANTICS[:at]:
        with pytest.raises(SettingsError, match=f"before torch {since}"):
            parse_settings(option, semantics=semantics)


def test_versions() -> None:
    versions = ("1.13", "2.8.0", "2.9.1", "2.10.0", "2.11.0+cu130", "2.12.1", "2.13.0", "2.14.1+cu130", "2.15.0", "3.0")
    expected = ("2.8", "2.8", "2.8", "2.10", "2.11", "2.12", "2.13", "2.13", "2.15", "2.15")
    assert tuple(semantics_of(version) for version in versions) == expected
    with pytest.raises(SettingsError, match="is not a version of torch"):
        semantics_of("new")


@given(st.text(alphabet="abc_:,[]0123456789.> TrueFalsmxsplitz", max_size=60))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with suppress(SettingsError):
        parse_settings(text, semantics="2.15")
