"""Tokenizers whose files are missing: generated ones split texts into words, and empty ones are found."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shared.commands import Predict, slow

from .conftest import SCRIPTS

RANDOM = ("--output", "--random-weights", "--config")
COUNT = re.compile(r"^(\w[\w-]*) ([0-9]+) ([0-9]+)$", re.MULTILINE)
# RAG's tokenizer consists of the tokenizers of two other models, and needs their configurations.
COMPOSITE = {"RagTokenizer", "rag"}
SOME = (
    "GPT2Tokenizer",
    "BertTokenizerFast",
    "T5TokenizerFast",
    "ByT5Tokenizer",
    "roberta",
    "qwen2",
    "gemma",
    "mistral",
)


def check_counts(text: str, least: int) -> None:
    """Every tokenizer has split the 110 words into 110 tokens or more, of many kinds."""
    counts = {name: (int(tokens), int(kinds)) for name, tokens, kinds in COUNT.findall(text)}
    assert len(counts) >= least, text
    for name, (tokens, kinds) in counts.items():
        most = 600 if kinds < 25 and tokens > 500 else 300  # tokens that are bytes
        assert tokens in range(110, most), name
        assert kinds > 10, name


@pytest.fixture
def configs(workplace: Path) -> Path:
    """A folder with a configuration of each type of model."""
    names = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ullage; ullage.emulate('T4'); from transformers.models.auto.tokenization_auto import "
            "TOKENIZER_MAPPING_NAMES as names; print(*names)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    folder = workplace / "configs"
    for name in names.stdout.split():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps({"model_type": name, "vocab_size": 1000}))
    shutil.copytree(SCRIPTS, folder / "llama", dirs_exist_ok=True)
    return folder


def test_generated_tokenizers_split_texts_into_words(predict: Predict, configs: Path) -> None:
    ended = predict("loads_tokenizers.py", *SOME, options=(*RANDOM, configs))
    assert ended.code == 0, ended.error
    check_counts(ended.error, len(SOME))


@slow
def test_every_class_of_tokenizers_splits_texts_into_words(predict: Predict, configs: Path) -> None:
    ended = predict("loads_tokenizers.py", options=(*RANDOM, configs))
    assert ended.code == 0, ended.error
    check_counts(ended.error, 250)  # some classes require packages that are not installed
    failed = re.findall(r"^(\w+) (?:OSError|AttributeError|ValueError|RuntimeError)\b", ended.error, re.MULTILINE)
    assert set(failed) <= COMPOSITE | {"ParakeetCTCTokenizer"}, ended.error  # a name without a class in 4.57


@pytest.mark.parametrize("how", ["nothing", "unknown"])
def test_a_tokenizer_that_loads_empty_is_generated(predict: Predict, workplace: Path, how: str) -> None:
    (workplace / "model").mkdir()
    (workplace / "model" / "tokenizer_config.json").write_text("{}")
    refused = predict("loads_empty.py", how)
    assert refused.code == 3
    assert "OSError: the tokenizer of 'model' is empty: its files are not on this machine" in refused.error
    assert "(--random-weights generates the tokenizer from the model's configuration)" in refused.error
    made = predict("loads_empty.py", how, options=("--json", "--random-weights", "--config", SCRIPTS))
    assert made.code == 0, made.error
    assert any("generated: the tokenizer of model (4,096 tokens)" in note for note in made.json["notes"])


def tokenizer_of(**words: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.WordLevel(words or {"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_unknown_tokens_are_not_a_vocabulary() -> None:
    code = (
        "import ullage; ullage.emulate('T4')\n"
        "from tests.predicting.made_up.test_tokenizers import tokenizer_of\n"
        "from ullage.predicting.made_up.vocabulary import _PROBE, has_vocabulary\n"
        "from transformers import ByT5Tokenizer\n"
        "words = {word: number for number, word in enumerate(['<unk>', *_PROBE.split()])}\n"
        "few = dict(list(words.items())[:4])\n"
        "found = [has_vocabulary(tokenizer_of(**each)) for each in ({}, few, words)]\n"
        "assert found == [False, False, True], found\n"
        "assert has_vocabulary(ByT5Tokenizer())\n"
        "assert not has_vocabulary(object())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
