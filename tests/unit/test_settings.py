"""The grammar of PYTORCH_ALLOC_CONF: what PyTorch reads is read, what it refuses is refused in one sentence."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage._units import GIB, MIB
from ullage.settings import (
    UNLIMITED,
    Settings,
    SettingsError,
    parse_settings,
    semantics_of,
    settings_in_force,
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense:1", "'nonsense' is no option of PyTorch's allocator; expected one of backend, "),
        ("throw_on_cudamalloc_oom:True", "is no option of PyTorch's allocator before torch 2.12"),
        ("max_split_size_mb", "the settings end where ':' of max_split_size_mb should follow"),
        ("max_split_size_mb:", "the settings end where the value of max_split_size_mb should follow"),
        ("max_split_size_mb=64", "'max_split_size_mb=64' is no option"),
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
        ("expandable_segments:true", "expandable_segments:true is not allowed; expected True or False, written so"),
        ("backend:cuda", "expected native or cudaMallocAsync"),
        ("roundup_power2_divisions:3", "expected a power of two"),
        ("roundup_power2_divisions:0", "expected a power of two"),
        ("roundup_power2_divisions:[3:4]", "expected sizes that are a power of two"),
        ("roundup_power2_divisions:[4:4", "the settings end where"),
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


def test_versions() -> None:
    assert [semantics_of(version) for version in ("2.8.0", "2.14.1+cu130", "2.15.0", "3.0")] == [
        *("2.11", "2.11", "2.15", "2.15")
    ]
    with pytest.raises(SettingsError, match="is no version of torch"):
        semantics_of("new")


@given(st.text(alphabet="abc_:,[]0123456789.> TrueFalsmxsplitz", max_size=60))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with suppress(SettingsError):
        parse_settings(text, semantics="2.15")
