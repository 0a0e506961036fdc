"""Made-up data for the public scripts, where they look for it. Only shapes matter: emulated cards compute nothing."""

import json
import random
import string
import struct
import subprocess
import sys
from pathlib import Path

import ullage

ullage.emulate("T4")  # this torch has no CUDA libraries beside it, and transformers imports it


def sentences() -> list[str]:
    """8,000 lines of 30 made-up words, the same ones at every call."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 8))) for _ in range(3000)]
    return [" ".join(chance.choices(words, k=30)) for _ in range(8000)]


def characters(folder: Path, repository: Path) -> None:
    """One text of all letters: minGPT's input.txt, nanoGPT's prepared character data set."""
    text = string.ascii_letters + string.punctuation + " \nO God, O God!" + "\n".join(sentences())
    (repository / "input.txt").write_text(text)
    prepare = repository / "data" / "shakespeare_char" / "prepare.py"
    if prepare.exists():
        (prepare.parent / "input.txt").write_text(text)
        subprocess.run([sys.executable, prepare], check=True, stdout=subprocess.DEVNULL)


def mnist(folder: Path, repository: Path) -> None:
    """The four files of MNIST, in their format, with noise in them."""
    raw = repository / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    for part, count in (("train", 60000), ("t10k", 10000)):
        images = struct.pack(">IIII", 2051, count, 28, 28) + chance.randbytes(count * 28 * 28)
        labels = struct.pack(">II", 2049, count) + bytes(index % 10 for index in range(count))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def text(folder: Path, repository: Path) -> None:
    """A text to train on, and one to validate with."""
    lines = sentences()
    (folder / "train.txt").write_text("\n".join(lines))
    (folder / "valid.txt").write_text("\n".join(lines[:500]))


def wikitext(folder: Path, repository: Path) -> None:
    """The three files of WikiText-2, with a tenth of its text and all of its 33,278 words."""
    place = repository / "word_language_model" / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    words = [f"word{index}" for index in range(33_277)]  # and <eos>
    for part, more in (("train", 170_000), ("valid", 20_000), ("test", 20_000)):
        drawn = words + chance.choices(words, k=more)
        lines = (" ".join(drawn[start : start + 30]) for start in range(0, len(drawn), 30))
        (place / f"{part}.txt").write_text("\n".join(lines))


def tokenizer(folder: Path, repository: Path) -> None:
    """A byte-pair tokenizer of 4,000 tokens, trained on the made-up text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(sentences()[:2000], trainer)
    special = {"eos_token": end, "bos_token": end, "unk_token": end, "pad_token": end}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=1024, **special).save_pretrained(
        folder / "tokenizer"
    )


def pictures(folder: Path, repository: Path) -> None:
    """200 pictures of noise."""
    from PIL import Image

    place = folder / "pictures" / "train"
    place.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    for index in range(200):
        Image.frombytes("RGB", (72, 72), chance.randbytes(72 * 72 * 3)).save(place / f"{index}.png")


def instructions(folder: Path, repository: Path) -> None:
    """2,000 pairs of instruction and output."""
    lines = sentences()
    place = folder / "instructions"
    place.mkdir(exist_ok=True)
    pairs = (
        {"instruction": lines[index], "output": f"{lines[index + 2000]} {lines[index + 1]}"} for index in range(2000)
    )
    (place / "train.json").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def llama(folder: Path, repository: Path) -> None:
    """A Llama of 8 layers, 2048 wide, with constant half-precision weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").half()
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    model.save_pretrained(folder / "llama")
    AutoTokenizer.from_pretrained(folder / "tokenizer").save_pretrained(folder / "llama")


if __name__ == "__main__":
    _, kind, folder_name, repository_name = sys.argv
    makers = {
        maker.__name__: maker for maker in (characters, mnist, text, wikitext, tokenizer, pictures, instructions, llama)
    }
    Path(folder_name).mkdir(parents=True, exist_ok=True)
    makers[kind](Path(folder_name), Path(repository_name))
