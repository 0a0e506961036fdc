"""Edits of source text, placed by line, everything else as it was; and unified diffs, applied by git itself."""

import ast
import random
import textwrap
from pathlib import Path

import pytest

from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.edit import (
    AddImport,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    NotCertain,
    ReplaceCall,
    WrapStatements,
)

LOOP = """\
import torch

def train(model, loader, optimizer):
    for x, y in loader:
        text = \"\"\"two
lines\"\"\"
        loss = loss_of(
            model(x),  # a comment
            y,
        )
        loss.backward()
        optimizer.step()
"""


def wrapped(first: int, last: int, header: str = "with cast():") -> WrapStatements:
    return WrapStatements(file="", first_line=first, last_line=last, header=header)


def test_a_block_is_wrapped_and_strings_stay_as_they_are() -> None:
    after = edited(LOOP, [wrapped(5, 8)])
    assert after == LOOP.replace(
        LOOP[LOOP.index("        text") : LOOP.index("        loss.backward")],
        """\
        with cast():
            text = \"\"\"two
lines\"\"\"
            loss = loss_of(
                model(x),  # a comment
                y,
            )
""",
    )


def test_what_is_wrapped_twice_is_nested_in_the_order_that_was_given() -> None:
    after = edited(LOOP, [wrapped(7, 11, "with outer():"), wrapped(7, 10, "with inner():")])
    lines = [line for line in after.splitlines() if "with" in line or "backward" in line or "step" in line]
    assert lines == [
        "        with outer():",
        "            with inner():",
        "            loss.backward()",
        "        optimizer.step()",
    ]
    same = edited(LOOP, [wrapped(11, 11, "with a():"), wrapped(11, 11, "with b():")])
    assert "        with a():\n            with b():\n                loss.backward()\n" in same


def test_lines_before_and_behind_a_wrapped_block_stand_outside_of_it() -> None:
    edits = [
        InsertAfter(file="", line=11, text="del loss"),
        InsertBefore(file="", line=7, text="begin()"),
        wrapped(7, 11),
        InsertAfter(file="", line=9, text="inside()\n\nagain()"),
    ]
    after = edited(LOOP, edits)
    assert "        begin()\n        with cast():\n            loss = loss_of(\n" in after
    assert (
        "            )\n            inside()\n\n            again()\n            loss.backward()\n        del loss\n"
        in after
    )


def test_blocks_that_would_cross_are_refused() -> None:
    with pytest.raises(NotCertain, match="overlapping blocks"):
        edited(LOOP, [wrapped(5, 7), wrapped(7, 11)])


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("AdamW(p)", "AdamW(p, fused=True)"),
        ("AdamW()", "AdamW(fused=True)"),
        ("AdamW(p, lr=1)", "AdamW(p, lr=1, fused=True)"),
        ("AdamW(p, fused=False)", "AdamW(p, fused=True)"),
        ("AdamW(p, **more)", "AdamW(p, **more, fused=True)"),
        ("AdamW(p, )", "AdamW(p, fused=True)"),
        (
            "torch.optim.AdamW(\n    p,  # all, of it\n    lr=1,\n)",
            "torch.optim.AdamW(\n    p,  # all, of it\n    lr=1,\n    fused=True,\n)",
        ),
        ("torch.optim.AdamW(\n    p  # all, of it\n)", "torch.optim.AdamW(\n    p  # all, of it\n, fused=True)"),
        ("é(AdamW(f(1, 2)), 'é')", "é(AdamW(f(1, 2), fused=True), 'é')"),
    ],
)
def test_a_keyword_is_added_or_its_value_changed(call: str, after: str) -> None:
    source = f"o = {call}\n"
    found = edited(source, [AddKeyword(file="", line=1, function="AdamW", keyword="fused", value="True")])
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(f"o = {after}\n"))
    assert found.replace(" ", "") == f"o = {after}\n".replace(" ", "")


def test_a_call_calls_something_else() -> None:
    edits = [
        ReplaceCall(file="", line=1, function="AdamW", replacement="bnb.AdamW8bit"),
        AddImport(file="", text="import bnb"),
    ]
    assert edited("o = torch.optim.AdamW(p)\n", edits) == "import bnb\no = bnb.AdamW8bit(p)\n"


@pytest.mark.parametrize(
    ("head", "after"),
    [
        ('"""Doc."""\n\nx = 1\n', '"""Doc."""\nimport bnb\n\nx = 1\n'),
        (
            "from __future__ import annotations\nimport os\n\nx = 1\n",
            "from __future__ import annotations\nimport os\nimport bnb\n\nx = 1\n",
        ),
        ("import bnb\nx = 1\n", "import bnb\nx = 1\n"),
        ("x = 1", "import bnb\nx = 1"),
        ("#!/usr/bin/env python\nx = 1\n", "#!/usr/bin/env python\nimport bnb\nx = 1\n"),
    ],
)
def test_an_import_goes_behind_the_first_ones(head: str, after: str) -> None:
    assert edited(head, [AddImport(file="", text="import bnb")]) == after


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("if x: y = 1\n", wrapped(1, 1), None),
        ("for a in b: f(a)\n", InsertAfter(file="", line=1, text="del a"), None),
        ("a = 1; b = 2\n", InsertAfter(file="", line=1, text="del a"), "several statements"),
        ("def f(:\n", wrapped(1, 1), "cannot be parsed"),
        ("a = 1\n", InsertAfter(file="", line=7, text="x"), "does not belong to a statement"),
        ("if a:\n    b()\nelse:\n    c()\n", wrapped(2, 4), None),
        ("f(AdamW(), AdamW())\n", AddKeyword(file="", line=1, function="AdamW", keyword="a", value="1"), "2 calls"),
        ("f()\n", AddKeyword(file="", line=1, function="AdamW", keyword="a", value="1"), "no call"),
        ("f(a,\n  a)\n", InsertAfter(file="", line=1, text="def"), "invalid Python"),
    ],
)
def test_what_is_not_certain_is_refused_or_takes_the_whole_statement(
    source: str, edit: object, message: str | None
) -> None:
    if message is None:
        tree = ast.parse(edited(source, [edit]))
        assert len(tree.body) in (1, 2)
        return
    with pytest.raises(NotCertain, match=message):
        edited(source, [edit], file="train.py")


def test_ends_of_lines_and_of_files_stay() -> None:
    source = "a = 1\r\nb = 2"
    assert edited(source, [InsertAfter(file="", line=1, text="c = 3")]) == "a = 1\r\nc = 3\r\nb = 2"
    assert edited("s = '\x0c'\nt = 1\n", [InsertAfter(file="", line=2, text="u = 2")]) == "s = '\x0c'\nt = 1\nu = 2\n"


SOURCE = Path(ast.__file__).read_text(encoding="utf-8")
PARTS = 6


def test_no_edit_leaves_a_real_file_as_it_is() -> None:
    assert edited(SOURCE, []) == SOURCE


@pytest.mark.by_day(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_wrap_of_a_real_file_keeps_its_meaning(part: int) -> None:
    """Random wraps by `if True:`: the tree without them is the tree of the file."""
    tree = ast.parse(SOURCE)
    whole = ast.dump(tree)
    blocks = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.For | ast.If | ast.With)]
    chance = random.Random(part)
    for block in chance.sample(blocks, 120 // PARTS):
        first, last = sorted((chance.randrange(len(block)), chance.randrange(len(block))))
        edit = wrapped(block[first].lineno, block[last].end_lineno or 0, "if '\\0ours':")
        after = edited(SOURCE, [edit])
        assert ast.dump(_Unwrapped().visit(ast.parse(after))) == whole


class _Unwrapped(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> object:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant) and node.test.value == "\0ours":
            return node.body
        return node


def test_an_example_reads_well() -> None:
    source = textwrap.dedent(
        """
        model = Net()
        optimizer = AdamW(model.parameters())
        """
    )
    text = "for block in model.blocks:\n    wrap(block)"
    assert edited(source, [InsertAfter(file="", line=2, text=text)]) == textwrap.dedent(
        """
        model = Net()
        for block in model.blocks:
            wrap(block)
        optimizer = AdamW(model.parameters())
        """
    )


def test_several_keywords_of_one_call_stand_in_their_order() -> None:
    keywords = [AddKeyword(file="", line=1, function="f", keyword=name, value="1") for name in ("z", "b", "m")]
    assert edited("f(a=2)\n", keywords) == "f(a=2, z=1, b=1, m=1)\n"
    assert edited("f(\n    a=2,\n)\n", keywords) == "f(\n    a=2,\n    z=1,\n    b=1,\n    m=1,\n)\n"
    assert edited("f()\n", keywords) == "f(z=1, b=1, m=1)\n"


def test_what_is_imported_beside_others_is_not_imported_again() -> None:
    source = "import os, torch\nx = 1\n"
    assert edited(source, [AddImport(file="", text="import torch")]) == source
    assert "import torch.utils.checkpoint\n" in edited(
        source, [AddImport(file="", text="import torch.utils.checkpoint")]
    )


def test_a_file_with_tabs_gets_tabs() -> None:
    source = "def f(x):\n\tfor y in x:\n\t\tg(y)\n\t\th(y)\n"
    after = edited(source, [wrapped(3, 4), InsertAfter(file="", line=4, text="if y:\n    k(y)")])
    assert after == "def f(x):\n\tfor y in x:\n\t\twith cast():\n\t\t\tg(y)\n\t\t\th(y)\n\t\tif y:\n\t\t\tk(y)\n"
