"""What is asked for, as options say it; every mistake is one sentence."""

from pathlib import Path

import pytest

from ullage import UsageError
from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData, read_lengths
from ullage.predicting.made_up.repository import shipped_config


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("text", MadeUpData(form="text")),
        ("text:length=2048,rows=64", MadeUpData(form="text", length=2048, rows=64)),
        ("chat:2048", MadeUpData(form="chat", length=2048)),
        ("preference:length=16,column=question", MadeUpData(form="preference", length=16, column="question")),
        ("image:384", MadeUpData(form="image", height=384, width=384)),
        ("image:224x320,rows=8,classes=5", MadeUpData(form="image", height=224, width=320, rows=8, classes=5)),
    ],
)
def test_data_is_described_in_a_line(text: str, data: MadeUpData) -> None:
    assert MadeUpData.parse(text) == data


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (
            MadeUpChoice(data="sound:4"),
            "made_up_data='sound:4' does not begin with text, chat, preference, image,",
        ),
        (MadeUpChoice(data="chat:classes=4"), "has 'classes'; expected length, rows or column"),
        (MadeUpChoice(data="text:size=4"), "has 'size'; expected classes, length, rows or column"),
        (MadeUpChoice(data="image:length=4"), "has 'length'; expected classes, height, rows, width or column"),
        (MadeUpChoice(data="text:rows=none"), "has rows=none; expected a number from 1 to 100,000,000"),
        (MadeUpChoice(data="text:length=0"), "has length=0; expected a number from 1 to 10,000,000"),
        (
            MadeUpChoice(lengths="/x"),
            "lengths= gives the lengths of rows for made_up_data=; give made_up_data= text, chat, preference",
        ),
        (
            MadeUpChoice(data="image:224", lengths="/x"),
            "lengths= gives lengths of texts, but made_up_data= is for images",
        ),
        (MadeUpChoice(data="text", lengths="/nowhere"), "lengths=/nowhere cannot be read: No such file or directory"),
        (
            MadeUpChoice(config="/x"),
            "config= gives the configuration for random_weights=; give random_weights=True too",
        ),
        (MadeUpChoice(random_weights=True, config="/nowhere"), "config=/nowhere does not exist; expected a folder"),
    ],
)
def test_a_mistake_is_one_sentence(choice: MadeUpChoice, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        choice.check()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_lengths_come_one_a_line_or_as_a_histogram(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("# of the corpus\n5\n7\n\n9,3\n")
    assert read_lengths(file) == [5, 7, 9, 9, 9]
    for text, words in (("5\nmany\n", "has 'many' in line 2; expected a length"), ("\n", "contains no length")):
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_lengths(file)


def test_common_models_are_known_by_name_whoever_has_uploaded_them() -> None:
    assert (shipped_config("unsloth/Llama-3.3-70B-Instruct") or {})["num_hidden_layers"] == 80
    assert (shipped_config("stable-diffusion-v1-5/stable-diffusion-v1-5", "unet") or {})["cross_attention_dim"] == 768
    assert shipped_config("stable-diffusion-v1-5/stable-diffusion-v1-5") is None
    assert shipped_config("stabilityai/sd-vae-ft-mse") == shipped_config("runwayml/stable-diffusion-v1-5", "vae")
    assert shipped_config("someone/unknown") is None
