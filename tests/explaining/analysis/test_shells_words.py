"""What shells say of a program that was killed, which no public text had: zsh in front, and zsh of a job behind."""

import pytest

from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import explain_text


@pytest.mark.parametrize(
    "text",
    [
        "zsh: killed     python train.py --batch 64\n",
        "[1]    4711 killed     python train.py --batch 64\n",
        "[1]  + 4711 killed     torchrun --nproc-per-node 8 train.py\n",
    ],
)
def test_what_zsh_says_is_a_kill(text: str) -> None:
    explained = explain_text(text)
    assert explained.cause is Cause.CANNOT_TELL
    assert "killed from outside" in explained.sentence


@pytest.mark.parametrize("name", ["Impossible d'allouer de la mémoire", "Nicht genügend Hauptspeicher verfügbar"])
def test_an_error_of_the_system_is_known_by_its_number(name: str) -> None:
    explained = explain_text(f"OSError: [Errno 12] {name}\n")
    assert explained.cause is Cause.HOST_MEMORY
    assert "Host memory" in explained.sentence
