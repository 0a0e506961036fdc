"""Columns of generated data sets: how they are described, and what their names mean."""

import pytest

from ullage import UsageError
from ullage.predicting.made_up.choice import MadeUpData
from ullage.predicting.made_up.columns import DataColumn, column_named
from ullage.predicting.made_up.known_data_sets import known_columns


def test_columns_are_described_in_a_line() -> None:
    data = MadeUpData.parse("columns=sentence1:text,sentence2:text:12,label:int:2,length=128,rows=8,height=32")
    assert (data.form, data.length, data.rows, data.height) == ("columns", 128, 8, 32)
    assert data.columns == (
        DataColumn(name="sentence1", kind="text"),
        DataColumn(name="sentence2", kind="text", size=12),
        DataColumn(name="label", kind="int", size=2),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("a:text", "a:text:7", "a:int", "a:int:3", "a:float", "a:image:32", "a:image:32x48", "a:tokens:9"),
        *("a:list:text:1", "a:list:5:int:9", "a:list:3:list:2:float", "a:answers", "a:audio:3", "a:video:8"),
        "video-id:text:4",
    ],
)
def test_a_description_is_read_and_written(text: str) -> None:
    assert str(DataColumn.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a:", ":text", "a:word", "a:text:0", "a:text:x", "a:text:-1", "a:text:1x2", "a:float:1"),
        *("a:answers:1", "a:list", "a:list:3", "a:list:3:word", "a:image:32x", "a:int:99999999", "a:int:2:3"),
        "a:int:\u0663",
    ],
)
def test_a_wrong_description_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"^made_up_data= has the column .*; expected NAME:text\[:TOKENS\], "):
        DataColumn.parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("columns=", "has the column ''"),
        ("columns=rows=4", "has no column; expected NAME:text"),
        ("columns=a:text,a:int", "has the column 'a' twice"),
        ("columns=a:text,column=b", "has 'column'; expected classes, height, length, rows, width"),
    ],
)
def test_a_wrong_list_of_columns_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        MadeUpData.parse(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *((name, "int:7") for name in ("label", "labels", "gold_label", "coarse_label", "target", "intent_class")),
        *((name, "int") for name in ("idx", "id", "speaker_id", "timestamp")),
        *((name, "float") for name in ("score", "similarity_score", "rating")),
        *((name, "list:int:7") for name in ("ner_tags", "pos_tags", "tags")),
        *((name, "list:text:1") for name in ("tokens", "words")),
        *((name, "image") for name in ("image", "img", "input_image")),
        *((name, "tokens") for name in ("input_ids", "attention_mask")),
        *(("audio", "audio"), ("video", "video"), ("answers", "answers")),
        *((name, "text") for name in ("text", "sentence1", "premise", "question", "label_text", "solid", "staged")),
    ],
)
def test_a_name_without_a_description_has_a_kind(name: str, column: str) -> None:
    assert str(column_named(name, classes=7)) == f"{name}:{column}"


def test_well_known_data_sets_have_their_columns() -> None:
    columns = known_columns("nyu-mll/glue", "mrpc")
    assert columns is not None
    assert [str(each) for each in columns] == ["sentence1:text", "sentence2:text", "label:int:2", "idx:int"]
    assert [each.name for each in known_columns("rajpurkar/squad", None) or ()][-1] == "answers"
    assert known_columns("glue", None) is None
    assert known_columns("someone/unknown", "mrpc") is None
