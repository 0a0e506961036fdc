"""A question as text, from C to Python."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ullage.gpu.emulator.cudnn.tree import (
    TYPE_DESCRIPTOR,
    TYPE_INT64,
    Attribute,
    Node,
    TreeError,
    convolution_of,
    describe,
    parse,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
# Lines that are nearly right get further than any text does.
NEARLY = st.lists(
    st.lists(
        st.one_of(
            st.builds("{}:{}:{},{}".format, st.integers(700, 720), st.sampled_from([3, 15]), *[st.integers(-1, 9)] * 2),
            st.sampled_from(
                ["1", "4", "10", "11", "12", "15", "17", "801:15:0", "704:15:0", "703:15:0", "705:15:1", "702:15:2"]
            ),
            st.sampled_from(
                ["902:3:", "902:3:1", "903:3:1,1", "901:1:", "902:3:0,0", "1", "-1", "x", ":", "::", "1:1:1:1"]
            ),
        ),
        max_size=6,
    ).map(" ".join),
    max_size=8,
).map("\n".join)


def written(tree: tuple[Node, ...]) -> str:
    """Write a tree as `client/ask_planner.c` does."""
    lines = []
    for node in tree:
        words = [f"{each.name}:{each.type}:{','.join(map(str, each.values))}" for each in node.attributes]
        lines.append(" ".join([str(node.kind), *words]))
    return "".join(f"{line}\n" for line in lines)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Node, ...]:
    """Any tree whose children come before their parents."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 8))):
        attributes = []
        for _ in range(draw(st.integers(0, 4))):
            is_child = number > 0 and draw(st.booleans())
            values = draw(st.lists(st.integers(0, number - 1) if is_child else NUMBERS, max_size=5))
            kind = TYPE_DESCRIPTOR if is_child else draw(st.sampled_from([1, 2, TYPE_INT64, 4, 8]))
            attributes.append(Attribute(draw(st.integers(0, 3000)), kind, tuple(values)))
        nodes.append(Node(draw(st.integers(0, 40)), tuple(attributes)))
    return tuple(nodes)


@given(st.one_of(st.text(), NEARLY))
@example("17 903:3:1,1\n1\n10 704:15:0 703:15:0 705:15:0 702:15:1\n15 801:15:2\n")
@example("17 902:3:4\n1\n10 704:15:0 703:15:0 705:15:0 702:15:1\n15 801:15:2\n")
def test_any_text_is_a_tree_or_says_why_not(text: str) -> None:
    """No text is an error of another kind, and whatever is a tree can be said in words."""
    try:
        tree = parse(text)
    except TreeError:
        return
    assert describe(tree)
    convolution_of(tree)


@given(trees())
def test_what_is_written_is_read(tree: tuple[Node, ...]) -> None:
    """Every descriptor, attribute and value comes back, in their order."""
    assert parse(written(tree)) == tree
    for number, node in enumerate(tree):
        children = [one.values for one in node.attributes if one.type == TYPE_DESCRIPTOR]
        assert all(child < number for child in itertools.chain(*children))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a query of 0 descriptors"),
        ("17\n" * 4097, "a query of 4097 descriptors"),
        ("17 902:3:1,2\n15 801:15:1\n", "line 2 of a query refers to a line that does not come before it"),
        ("15 801:15:-1\n", "line 1 of a query refers to a line that does not come before it"),
        ("17\n17 902:3\n", "line 2 of a query cannot be read: '17 902:3'"),
    ],
)
def test_what_is_no_tree_says_where(text: str, reason: str) -> None:
    """The line is named."""
    with pytest.raises(TreeError, match=reason):
        parse(text)


QUESTION = """\
17 901:1:9 902:3:8,16,56,56 903:3:50176,1,896,16 906:3:120 900:3:16
17 901:1:9 902:3:32,4,3,3 903:3:36,1,12,4 906:3:119 900:3:16
17 901:1:9 902:3:8,32,28,28 903:3:25088,1,896,32 906:3:121 900:3:16
1 100:1:0 101:7:1 106:3:2 103:3:2,2 104:3:1,1 105:3:1,1 102:3:1,1
10 704:15:0 703:15:1 705:15:2 702:15:3 700:4:1065353216 701:4:0
15 801:15:4
4 201:15:5 200:8:0
"""


def test_a_question_in_words() -> None:
    """What a reason ends with names the operation, the type, the shapes, and what is not plain."""
    words = "convolution bf16 8x16x56x56 with 32x4x3x3, stride 2, padding 1, 4 groups, channels last"
    assert describe(parse(QUESTION)) == words
    found = convolution_of(parse(QUESTION))
    assert found is not None
    assert found.tensor_bytes == 2 * (8 * 16 * 56 * 56 + 32 * 4 * 3 * 3 + 8 * 32 * 28 * 28)
