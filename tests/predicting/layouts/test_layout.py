"""Every layout of so many cards, once; and what the script is told of it."""

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.base.errors import UsageError
from ullage.predicting.layouts.layout import CardLayout, LayoutSpace
from ullage.predicting.layouts.option_map import READY, map_of, put
from ullage.predicting.layouts.representative import ranks_of

AXES = ("dp", "tp", "pp", "cp")


@settings(max_examples=60)
@given(
    cards=st.integers(1, 96), count=st.integers(1, 4), bounds=st.dictionaries(st.sampled_from(AXES), st.integers(1, 16))
)
def test_the_layouts_are_all_products_within_the_bounds(cards: int, count: int, bounds: dict[str, int]) -> None:
    axes = AXES[:count]
    most = {name: size for name, size in bounds.items() if name in axes}
    divisors = [number for number in range(1, cards + 1) if cards % number == 0]
    expected = {
        sizes
        for sizes in itertools.product(divisors, repeat=count)
        if prod(sizes) == cards and all(size <= most.get(name, cards) for name, size in zip(axes, sizes, strict=True))
    }
    space = LayoutSpace(axes=axes, cards=cards, most=most)
    found = [tuple(size for _, size in layout.sizes) for layout in space.layouts()]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_experts_divide_the_cards_of_dp_and_cp() -> None:
    found = list(LayoutSpace.parse("dp*tp,ep", 8, most=["tp=2", "ep=4"]).layouts())
    assert all((layout.size("dp") * layout.size("cp")) % layout.size("ep") == 0 for layout in found)
    assert {(layout.size("dp"), layout.size("ep")) for layout in found} == {
        *((8, size) for size in (1, 2, 4)),
        *((4, size) for size in (1, 2, 4)),
    }


def test_values_of_an_option_are_tried_with_each_layout() -> None:
    space = LayoutSpace.parse("dp*tp", 4, choose=["--zero=1,3", "env:OFFLOAD=0,1"])
    found = list(space.layouts())
    assert len(found) == 3 * 2 * 2
    assert found[0].text == "dp 1 · tp 4, --zero 1, env:OFFLOAD 0"
    option_map = map_of(None, ["dp=--dp", "tp=--tp"], space)
    assert put(option_map, found[1], ("--steps", "3", "--tp=9")) == (
        ("--steps", "3", "--tp=4", "--dp", "1", "--zero", "1"),
        {"OFFLOAD": "1"},
    )


@pytest.mark.parametrize(
    ("text", "cards", "most", "choose", "said"),
    [
        ("dp*dp", 8, [], [], "is not a product of different axes"),
        ("dp*2", 8, [], [], "is not a product of different axes"),
        ("dp", 0, [], [], "cards=0 is out of range; expected 1 to 1,048,576"),
        ("dp", 10**30, [], [], "out of range"),
        ("dp*tp", 8, ["cp=2"], [], "is not a bound of an axis"),
        ("dp*tp", 8, ["dp=1", "tp=4"], [], "allows no layout of 8 GPUs with dp up to 1, tp up to 4"),
        ("dp*tp", 8, [], ["--zero"], "is not an option with values"),
        ("a*b*c*d*e*f*g", 2**20, [], [], "has more than 10,000 layouts"),
    ],
)
def test_what_is_no_space_of_layouts_is_a_sentence(
    text: str, cards: int, most: list[str], choose: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        LayoutSpace.parse(text, cards, most=most, choose=choose)


def test_ready_made_maps_have_the_options_of_their_programs() -> None:
    layout = CardLayout(sizes=(("dp", 8), ("tp", 2), ("pp", 4)))
    space = LayoutSpace(axes=("dp", "tp", "pp"), cards=64, most={})
    assert put(map_of("torchtitan", [], space), layout, ())[0] == (
        *("--parallelism.data_parallel_shard_degree", "8"),
        *("--parallelism.tensor_parallel_degree", "2"),
        *("--parallelism.pipeline_parallel_degree", "4"),
    )
    # Megatron-LM works out dp itself.
    assert put(map_of("megatron", [], space), layout, ())[0] == (
        *("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4"),
    )
    two = LayoutSpace(axes=("dp", "tp"), cards=16, most={})
    arguments, environment = put(map_of("accelerate", [], two), CardLayout(sizes=(("dp", 8), ("tp", 2))), ("-x",))
    assert arguments == ("-x",)
    assert environment == {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "8",
        "PARALLELISM_CONFIG_TP_SIZE": "2",
    }
    assert set(READY) == {"torchtitan", "megatron", "accelerate", "deepspeed", "lightning"}


def test_an_axis_that_nothing_is_told_of_is_refused() -> None:
    space = LayoutSpace(axes=("dp", "tp"), cards=16, most={})
    with pytest.raises(UsageError, match="no option of the script is known that sets tp; give layout_option='tp="):
        map_of(None, [], space)
    with pytest.raises(UsageError, match="layout_option='pp=--pp' does not map an axis"):
        map_of(None, ["pp=--pp"], space)
    with pytest.raises(UsageError, match="layout_map='x' is unknown"):
        map_of("x", [], space)
    with pytest.raises(UsageError, match="rank_order='dp' does not name the axes"):
        map_of(None, ["tp=--tp"], space, order="dp")


def test_where_ranks_differ_along_an_axis_it_has_to_be_known_which_are_neighbours() -> None:
    for text, name in (("dp*cp*ctx", "ctx"), ("pp*dp*context", "context")):
        space = LayoutSpace.parse(text, 8)
        options = [f"{axis}=--{axis}" for axis in space.axes]
        with pytest.raises(UsageError, match=f"the order of ranks along {name} is unknown; give rank_order="):
            map_of(None, options, space)
        assert map_of(None, options, space, order=text).order == tuple(text.split("*"))
    with pytest.raises(UsageError, match="order of ranks along cp is unknown"):
        map_of("lightning", ["cp=--cp"], LayoutSpace.parse("dp*tp*cp", 8))
    assert map_of(None, ["ctx=--ctx"], LayoutSpace.parse("dp*ctx", 8)).targets["ctx"] == "--ctx"  # all are alike


@given(dp=st.integers(1, 8), tp=st.integers(1, 8), pp=st.integers(1, 8), cp=st.integers(1, 4))
def test_the_ranks_that_are_run_are_of_the_stages_that_they_stand_for(dp: int, tp: int, pp: int, cp: int) -> None:
    layout = CardLayout(sizes=(("dp", dp), ("tp", tp), ("pp", pp), ("cp", cp)))
    option_map = map_of("torchtitan", [], LayoutSpace(axes=AXES, cards=dp * tp * pp * cp, most={}))
    every = ranks_of(layout, option_map, every_stage=True)
    alike = ranks_of(layout, option_map)
    assert set(alike) <= set(every)
    assert all(0 <= run.rank < dp * tp * pp * cp for run in every)
    first = "cp rank 0" if cp > 1 else ""
    if pp == 1:
        assert [(run.rank, run.stands_for) for run in every] == [(0, first or "all ranks")]
    else:
        assert [run.rank // (dp * cp * tp) for run in every] == list(range(pp))
        names = [f"{name}, {first}".removesuffix(", ") for name in ("first stage", "last stage")]
        assert [alike[0].stands_for, alike[-1].stands_for] == names
        assert len(alike) == min(pp, 3)
    along = ranks_of(layout, option_map, every_context=True)
    assert set(alike) <= set(along)
    assert [run.rank // tp % cp for run in along] == list(range(cp)) * len(alike)  # tensor parallelism lies within
    assert len({run.rank for run in along}) == len(along) == cp * len(alike)


ORDERS = ("cp*tp", "tp*cp")


def test_another_order_of_ranks_is_another_stride() -> None:
    layout = CardLayout(sizes=(("pp", 4), ("tp", 2)))
    space = LayoutSpace(axes=("pp", "tp"), cards=8, most={})
    options = ["pp=--pp", "tp=--tp"]
    assert [run.rank for run in ranks_of(layout, map_of(None, options, space))] == [0, 2, 6]
    assert [run.rank for run in ranks_of(layout, map_of(None, options, space, order="tp*pp"))] == [0, 1, 3]
    space = LayoutSpace(axes=("cp", "tp"), cards=8, most={})
    layout, options = CardLayout(sizes=(("cp", 4), ("tp", 2))), ["cp=--cp", "tp=--tp"]
    every = {order: ranks_of(layout, map_of(None, options, space, order=order), every_context=True) for order in ORDERS}
    assert [[run.rank for run in ranks] for ranks in every.values()] == [[0, 2, 4, 6], [0, 1, 2, 3]]
    assert [run.stands_for for run in every["cp*tp"]] == ["cp rank 0", "cp rank 1", "cp rank 2", "cp rank 3"]
