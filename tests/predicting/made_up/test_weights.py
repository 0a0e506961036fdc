"""Weights that are not here: loaded as real ones are, to the byte, and nothing is left of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared.commands import Predict, command, environment_of, processes_of

from .conftest import SCRIPTS, gated_hub, offline

RANDOM = ("--random-weights", "--config", SCRIPTS)
KNOWN = (
    "(the weights of 'someone/unknown' are not on this machine; --random-weights generates them from the configuration)"
)
STEPS = ("peak_allocated_bytes", "peak_reserved_bytes", "steps", "roles")


def alone(workplace: Path, script: str, *arguments: str) -> None:
    """Run a script of ours on an emulated card, without a prediction."""
    code = (
        f"import ullage, runpy, sys; ullage.emulate('T4'); sys.argv = {[script, *arguments]}; "
        f"runpy.run_path({str(SCRIPTS / script)!r}, run_name='__main__')"
    )
    environment = environment_of(workplace, **offline(workplace))
    subprocess.run([sys.executable, "-c", code], cwd=workplace, env=environment, check=True)


@pytest.mark.parametrize("ways", [("device_map",), ("float32",), ("words",)], ids="-".join)
def test_a_model_is_loaded_as_from_a_real_checkpoint(predict: Predict, workplace: Path, ways: tuple[str, ...]) -> None:
    """Peaks of every step, and what was reserved, are those of a saved model, to the byte."""
    if "words" in ways:  # there is no tokenizer beside a checkpoint
        ended = predict("trains_a_llama.py", "someone/llama", *ways, options=("--json", *RANDOM))
        assert ended.code == 0, ended.error
        assert any("the tokenizer of someone/llama (4,096 tokens)" in note for note in ended.json["notes"])
        return
    alone(workplace, "trains_a_llama.py", str(SCRIPTS), "save", "real")
    real = predict("trains_a_llama.py", "real", *ways, options=("--json",))
    made = predict("trains_a_llama.py", "someone/llama", *ways, options=("--json", *RANDOM))
    assert (real.code, made.code) == (0, 0), real.error + made.error
    assert {name: made.json[name] for name in STEPS} == {name: real.json[name] for name in STEPS}
    assert any(
        note.startswith("generated: the weights of someone/llama (LlamaForCausalLM, 3,548,416 parameters), from ")
        for note in made.json["notes"]
    ), made.json["notes"]
    assert not any("made up" in note for note in real.json["notes"])


def test_checkpoints_are_what_the_library_writes(workplace: Path) -> None:
    """Names, shapes, types and their order in the file are those of a real one; a large one takes no room."""
    alone(workplace, "writes_checkpoints.py")


@pytest.mark.parametrize("who", ["itself", "parent"])
def test_nothing_is_left_when_somebody_is_killed(workplace: Path, who: str) -> None:
    """The script, or `ullage predict`, whose folder of temporary files is empty afterwards (see `workplace`)."""
    process = subprocess.Popen(
        command("--gpu", "T4", "--output", *RANDOM, SCRIPTS / "dies.py", who),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=workplace,
        env=environment_of(workplace, **offline(workplace)),
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line == "loaded\n":
            break
    assert "loaded" in said, said
    if who == "parent":
        [folder] = [path for path in (workplace / "tmp").iterdir() if path.name.startswith("ullage-made-up-")]
        assert list(folder.glob("*/model.safetensors"))
        process.send_signal(signal.SIGKILL)
    assert process.wait(900) == (-signal.SIGKILL if who == "parent" else 3)
    process.stderr.close()
    while processes_of(workplace / "tmp"):  # what has to end by itself: the kernel and the keeper see to it
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (
            "model",
            KNOWN,
        ),
        (
            "tokenizer",
            "(the files of the tokenizer of 'someone/unknown' are not on this machine; --random-weights generates them",
        ),
        (
            "file",
            "(the file 'missing.pt' does not exist; with --random-weights the model keeps its initial random weights)",
        ),
        ("pictures", "(the images of 'missing' are not on this machine; --made-up-data image:224 generates images)"),
    ],
)
def test_without_the_option_the_failure_names_it(predict: Predict, what: str, sentence: str) -> None:
    ended = predict("fails.py", what)
    assert ended.code == 3
    assert sentence in ended.error
    assert ended.error.count(sentence) == 1


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("what", "named"), [("model", "the weights"), ("tokenizer", "the files of the tokenizer")])
def test_a_gated_repository_says_where_to_ask(predict: Predict, what: str, named: str, status: int) -> None:
    """The library's own errors, of the answers that a hub gives."""
    with gated_hub(status) as changes:
        ended = predict("fails.py", what, **changes)
        assert ended.code == 3
        assert (
            f"({named} of 'someone/unknown' are gated: request access at 'https://huggingface.co/someone/unknown', "
            "then log in with `hf auth login` or set HF_TOKEN; --random-weights generates them from the configuration)"
        ) in ended.error
        if status == 403 and what == "model":
            made = predict("trains_a_llama.py", "someone/llama", options=("--json", *RANDOM), **changes)
            assert made.code == 0, made.error


@pytest.mark.parametrize("what", ["model", "tokenizer"])
def test_a_model_that_nobody_knows_is_one_sentence(predict: Predict, what: str) -> None:
    ended = predict("fails.py", what, options=("--random-weights",))
    assert ended.code == 3
    assert "of 'someone/unknown' cannot be generated without a configuration. It was not found in" in ended.error
    assert "Put the model's config.json into a folder and give --config FOLDER" in ended.error


def test_files_and_pictures_that_are_not_here(predict: Predict) -> None:
    options = ("--json", "--random-weights", "--made-up-data", "image:40x48,rows=8,classes=3")
    ended = predict("reads_files.py", options=options)
    assert ended.code == 0, ended.error
    notes = " ".join(ended.json["notes"])
    assert "generated: the file missing.pt is missing; models that load it keep their initial random values" in notes
    assert "generated: 8 images of 40x48 in place of missing/train" in notes


def test_folders_of_objects_are_generated(predict: Predict) -> None:
    """torchvision's own classes read them, with the sizes and classes that were asked for."""
    ended = predict("reads_objects.py", options=("--json", "--made-up-data", "image:64x80,rows=5,classes=12"))
    assert ended.code == 0, ended.error
    assert "generated: 5 images of 64x80 with 2 objects each in place of missing" in ended.json["notes"]


def test_a_hint_does_not_name_the_option_that_was_given(predict: Predict, workplace: Path) -> None:
    ended = predict("fails.py", "flowers", options=("--made-up-data", "image:32"))
    assert ended.code == 3
    assert (
        "(the images of 'missing' are not on this machine; --made-up-data image:224 generates images for ImageFolder, "
        "ImageNet, CIFAR, MNIST, PASCAL VOC and COCO alone)"
    ) in ended.error
    (workplace / "config.json").write_text('{"model_type": "nothing"}')
    ended = predict("fails.py", "model", options=("--random-weights", "--config", workplace))
    assert ended.code == 3
    assert "--random-weights generates" not in ended.error


def test_after_the_first_failed_connection_nothing_is_asked_of_the_hub(predict: Predict) -> None:
    """Without that, huggingface_hub repeats each request for half a minute."""
    began = time.monotonic()
    ended = predict("trains_a_llama.py", "someone/llama", "words", options=("--json", *RANDOM), HF_HUB_OFFLINE="0")
    assert ended.code == 0, ended.error
    assert time.monotonic() - began < 60
    [note] = [note for note in ended.json["notes"] if "no connection to" in note]
    assert note.startswith("no connection to https://huggingface.co: after the first failed connection, ullage set ")


def test_a_folder_with_a_configuration_alone_is_enough(predict: Predict, workplace: Path) -> None:
    os.mkdir(workplace / "model")
    shutil.copy(SCRIPTS / "config.json", workplace / "model")
    ended = predict("trains_a_llama.py", "model", options=("--json", "--random-weights"))
    assert ended.code == 0, ended.error
    assert any("from model/config.json" in note or "its own config.json" in note for note in ended.json["notes"])
