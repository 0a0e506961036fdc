"""The autograd node that a C++ frame runs is found in its name, however long the name is."""

import random
import re
import time

import pytest

from ullage.explaining.analysis.frame_names import node_in

PLAIN = re.compile(r"(?<!\w)(\w*?)(Backward(?:All)?\d*)(?:<.*>)?::apply\b")
"""The same rule as one pattern, which takes the square of the time for a name of twice the length."""
PIECES = ("Backward", "Backward0", "All", "<", ">", "::apply", "(", "Addmm", "_", "12", "::", ", ", " ", "x")


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", ("Addmm", "Backward0")),
        ("torch::autograd::CppNode<Mine>::apply(x)", None),
        ("LogSoftmaxBackwardAll0::apply", ("LogSoftmax", "BackwardAll0")),
        ("MyBackward<float, std::pair<int, int>>::apply(x)", ("My", "Backward")),
        ("a::FooBackward1<x> b::BarBackward2::apply", ("Bar", "Backward2")),
        ("FooBackward0::apply_with_saved", None),
        ("FooBackward0", None),
        ("", None),
    ],
)
def test_the_name_of_a_node(name: str, groups: tuple[str, str] | None) -> None:
    found = node_in(name)
    assert (found.groups() if found is not None else None) == groups


def test_the_search_finds_what_the_plain_pattern_finds() -> None:
    chance = random.Random(3)
    agreed = 0
    for _ in range(20_000):
        name = "".join(chance.choices(PIECES, k=chance.randrange(1, 12)))
        expected, found = PLAIN.search(name), node_in(name)
        assert (found and found.groups()) == (expected and expected.groups()), name
        agreed += expected is not None
    assert agreed > 200


@pytest.mark.parametrize("piece", ["x", "Backward", "Backward<", "aBackward0<>::appl", "aBackward0<", ">::apply", "9"])
def test_a_long_name_takes_little_time(piece: str) -> None:
    began = time.process_time()
    node_in("Backward ::apply_ " + piece * (300_000 // len(piece)))
    assert time.process_time() - began < 0.5
