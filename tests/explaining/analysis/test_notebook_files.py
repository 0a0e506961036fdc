"""A saved notebook: its outputs are searched as if they had been printed, so that the user's line is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from ullage.api.explain import explain_text
from ullage.explaining.analysis.text.explain import TextExplanation

ERROR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0.50 GiB is free. "
    "Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated."
)
TRACEBACK = [
    "\x1b[0;31m" + "-" * 75 + "\x1b[0m",
    "\x1b[0;31mOutOfMemoryError\x1b[0m                          Traceback (most recent call last)",
    "Cell \x1b[0;32mIn[3], line 1\x1b[0m\n\x1b[0;32m----> 1\x1b[0m \x1b[43mmodel\x1b[49m(x)\n",
    "File \x1b[0;32m~/proj/net.py:17\x1b[0m, in \x1b[0;36mNet.forward\x1b[0;34m(self, x)\x1b[0m\n"
    "\x1b[1;32m     16\x1b[0m h = self.a(x)\n\x1b[0;32m---> 17\x1b[0m \x1b[38;5;28;01mreturn\x1b[39;00m h @ h.T\n",
    "\x1b[0;31mOutOfMemoryError\x1b[0m: " + ERROR,
]


def notebook(*outputs: dict[str, Any]) -> dict[str, Any]:
    cell = {"cell_type": "code", "execution_count": 3, "metadata": {}, "source": ["model(x)"], "outputs": list(outputs)}
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# CUDA out of memory: what to do"]}
    return {"cells": [text, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def told(content: str, tmp_path: Path) -> TextExplanation:
    path = tmp_path / "train.ipynb"
    path.write_text(content, "utf-8")
    return explain_text(path, lambda text: None)


FAILED = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": ERROR, "traceback": TRACEBACK}


@pytest.mark.parametrize("indent", [None, 1])
def test_the_line_of_a_notebooks_error_is_found(indent: int | None, tmp_path: Path) -> None:
    explained = told(json.dumps(notebook(FAILED), indent=indent), tmp_path)
    assert explained.cause.value == "truly_full"
    assert explained.found.place == "proj/net.py:17"
    assert explained.found.statement == "return h @ h.T"


@pytest.mark.parametrize(
    "output",
    [
        {"output_type": "error", "ename": "OutOfMemoryError", "evalue": ERROR, "traceback": []},
        {"output_type": "stream", "name": "stderr", "text": ["step 1\n", f"torch.OutOfMemoryError: {ERROR}\n"]},
        {"output_type": "stream", "name": "stderr", "text": f"torch.OutOfMemoryError: {ERROR}\n"},
        {"output_type": "execute_result", "metadata": {}, "data": {"text/plain": [f"OutOfMemoryError('{ERROR}')"]}},
    ],
)
def test_all_that_a_cell_can_print_is_searched(output: dict[str, Any], tmp_path: Path) -> None:
    assert told(json.dumps(notebook(output)), tmp_path).cause.value == "truly_full"


def test_a_notebook_that_was_cut_off_is_searched_as_it_stands(tmp_path: Path) -> None:
    content = json.dumps(notebook(FAILED), indent=1)
    assert told(content[:-20], tmp_path).cause.value == "truly_full"


@pytest.mark.parametrize("cells", ["[7]", "7", '[{"outputs": 7}]', '[{"outputs": [{"output_type": "error"}]}]'])
def test_what_only_looks_like_a_notebook_is_a_text(cells: str, tmp_path: Path) -> None:
    content = f'{{"cells": {cells}}}\ntorch.OutOfMemoryError: {ERROR}\n'
    assert told(content, tmp_path).cause.value == "truly_full"
    content = f'{{"cells": {cells}, "said": "torch.OutOfMemoryError: {ERROR}"}}'
    assert told(content, tmp_path).cause.value == "truly_full"
