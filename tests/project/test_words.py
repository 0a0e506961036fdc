"""The words that CONTRIBUTING replaces by others are not used in what people read."""

from pathlib import Path

import pytest

from tests.project.test_docs import module_of

ROOT = Path(__file__).resolve().parents[2]
words = module_of(ROOT / "tools" / "words.py")


def test_no_replaced_word_is_used() -> None:
    assert words.found(words.files()) == []


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("a.md", "The real cards are emulated.", 1),
        ("a.md", "`--cards 4` is an option, and [a page](real_cards.md).", 0),
        ("a.md", "```\nthe card\n```\n", 0),
        ("a.md", "It is no longer used.", 0),
        ("a.md", "It is no error.", 1),
        ("a.md", "Beside the point", 1),
        ("a.py", '"""Tell whether it fits."""\n', 1),
        ("a.py", '"""Do it.\n\nArgs:\n    cards: GPUs.\n"""\n', 0),
        ("a.py", "x = 1  # of the card\n", 1),
        ("a.py", "card = beside(told)\n", 0),
        ("a.py", 'error = f"the card {card} is not known"\n', 1),
    ],
)
def test_the_search_finds_words_in_prose_only(tmp_path: Path, name: str, text: str, number: int) -> None:
    (tmp_path / name).write_text(text)
    words.ROOT = tmp_path
    try:
        (tmp_path / "CONTRIBUTING.md").write_text((ROOT / "CONTRIBUTING.md").read_text())
        assert len(words.found([tmp_path / name])) == number
    finally:
        words.ROOT = ROOT
