"""Run the cells of a notebook one after the other, and print them with what they print: what docs/notebook.md shows.

    python tools/play_notebook.py FILE [--from N] [--to N]

The cells are run by IPython's own shell, as a kernel runs them; those before N too, without being shown. A cell that
fails ends nothing here: it stands for a person who goes on with the next one.
"""

import argparse
import contextlib
import io
import json
import re
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first cell to be shown")
    parser.add_argument("--to", dest="last", type=int, help="the last one to be run")
    options = parser.parse_args()
    cells = [cell for cell in json.loads(options.file.read_text())["cells"] if cell["cell_type"] == "code"]
    shell = InteractiveShell(colors="nocolor")
    for number, cell in enumerate(cells[: options.last], 1):
        text = "".join(cell["source"])
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            shell.run_cell(text, store_history=True)
        if number >= options.first:
            prompt = f"In [{number}]: "
            print(prompt + text.replace("\n", "\n" + "...: ".rjust(len(prompt))))
            print(named(out.getvalue().rstrip("\n")) + "\n" * bool(out.getvalue()))


def named(text: str) -> str:
    """Name cells as a notebook does, and not by the files of this shell."""
    return re.sub(r"File <ipython-input-(\d+)-\w+>", r"Cell In[\1]", text)


if __name__ == "__main__":
    main()
