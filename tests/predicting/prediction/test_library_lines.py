"""Whose line it is where a script has only one: `trainer.train()`."""

from pathlib import Path

from tests.shared.commands import Predict

TRAINER = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(512, 512)

    def forward(self, x):
        return self.inner(x).sigmoid()


def train():
    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        model(torch.randn(4096, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_module_and_the_librarys_line_stand_where_all_is_one_line(predict: Predict, workplace: Path) -> None:
    folder = workplace / "site-packages"
    folder.mkdir()
    (folder / "a_trainer.py").write_text(TRAINER)
    line = next(number for number, text in enumerate(TRAINER.splitlines(), 1) if "sigmoid" in text)
    ended = predict("hands_over.py", folder, "--json")
    assert ended.code == 0, ended.error
    assert {row["line"] for row in ended.json["lines"] if row["file"]} == {8}
    assert sum(row["bytes"] for row in ended.json["library_lines"]) == sum(row["bytes"] for row in ended.json["lines"])
    most = next(row for row in ended.json["library_lines"] if row["role"] == "activations")
    assert (most["module"], Path(most["file"]).name, most["line"]) in (
        ("Sequential.*", "a_trainer.py", line),
        ("Sequential.*.inner", "a_trainer.py", line),
    )
    text = predict("hands_over.py", folder, COLUMNS="80").out
    assert ", by module; most of it was allocated through " in " ".join(text.split())
    assert f"a_trainer.py:{line}" in text
    lines = [line for line in text.splitlines()[2:] if not line.startswith("ullage run ")]  # a command is one line
    assert max(len(line) for line in lines) <= 80
