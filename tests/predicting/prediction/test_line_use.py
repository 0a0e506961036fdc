"""Memory by the user's own lines, and by module where one of these lines leads to most of it."""

from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.measurement.line_use import BlockUse, library_lines_of, lines_of

TRAIN = Line("train.py", 7)


def use(size: int, *, line: Line | None = TRAIN, librarys: Line | None = None, module: str = "") -> BlockUse:
    return BlockUse(role="activations", line=line, librarys=librarys, module=module, phase="forward", size_bytes=size)


def test_one_line_that_leads_to_most_is_told_by_module_and_by_the_librarys_line() -> None:
    """A star stands for the numbers in modules' names: what layers of one kind hold is one row."""
    deep = Line("site-packages/library/model.py", 30)
    uses = [
        use(5, librarys=deep, module="Net.layers.0.mlp"),
        use(5, librarys=deep, module="Net.layers.11.mlp"),
        use(1, librarys=deep, module="Net.head"),
        use(2, line=Line("train.py", 3)),
    ]
    rows = [(row.module, row.file, row.line, row.bytes, row.blocks) for row in library_lines_of(uses)]
    assert rows == [
        ("Net.layers.*.mlp", deep.file, 30, 10, 2),
        ("", "train.py", 3, 2, 1),
        ("Net.head", deep.file, 30, 1, 1),
    ]
    assert [(row.line, row.bytes, row.module) for row in lines_of(uses)] == [(7, 11, ""), (3, 2, "")]


def test_lines_of_the_users_own_tell_enough_where_no_library_is_between_or_none_leads_to_most() -> None:
    deep = Line("site-packages/library/model.py", 30)
    assert library_lines_of([use(5, module="Net"), use(2, line=Line("train.py", 3))]) == []
    assert library_lines_of([use(5, librarys=deep), use(5, line=Line("train.py", 3), librarys=deep)]) == []
    assert library_lines_of([use(5, line=None, librarys=deep)]) == []
    assert library_lines_of([]) == []
